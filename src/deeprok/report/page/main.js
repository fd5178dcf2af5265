// The page: its scenes, the theme, the keyboard, and newer data where it is served while runs train.

import { choice, h, words } from "./elements.js";
import { drawEvidence } from "./evidence.js";
import { drawSolved } from "./solved.js";
import { headline, Stage } from "./stage.js";
import { worldOf } from "./worlds.js";
import { outputs, readWeights, decide } from "./network.js";

const COLOURS = ["ink", "grey", "pale", "meadow", "blue", "orange", "green", "red"];
const ASK_EVERY = 3000;

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const rgb = (name) => value(name).split(" ").map(Number);
  return {
    colours: Object.fromEntries(COLOURS.map((name) => [name, value(`draw-${name}`)])),
    series: [1, 2, 3, 4, 5, 6].map((i) => value(`series-${i}`)),
    bad: rgb("map-bad"),
    middle: rgb("map-middle"),
    good: rgb("map-good"),
  };
}

class Page {
  constructor(data) {
    this.data = data;
    this.chosen = { over: "episodes", measure: "mean_return" };
    this.index = 0;
    this.theme = readTheme();
    this.reduced = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.main = document.querySelector("main");
    this.build();
    document.addEventListener("keydown", (event) => this.key(event));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.retheme());
    window.addEventListener("resize", () => this.stage?.repaint());
    if (data.live) setInterval(() => this.ask(), ASK_EVERY);
  }

  get scene() {
    return this.data.scenes[this.index];
  }

  build(before = null) {
    const { scenes } = this.data;
    if (!scenes.length) {
      this.tables();
      return;
    }
    const tabs = scenes.length > 1
      ? choice("Environment", scenes.map((scene, i) => [String(i), words(scene.name)]), String(this.index),
          (value) => this.open(Number(value)))
      : null;
    document.title = `${words(this.scene.name)} · ${this.data.title}`;
    this.heading = h("p", { class: "headline" }, headline(this.scene));
    this.stage = new Stage(this.scene, this.theme, this.reduced, before);
    this.evidence = h("div", { class: "evidence" }, drawEvidence(this.scene, this.theme, this.chosen));
    const many = this.scene.agents.length > 1;
    this.main.replaceChildren(
      h("header", { class: "page" },
        h("p", { class: "over" }, this.data.live ? "deeprok watch" : "deeprok report"),
        h("h1", {}, `${words(this.scene.name)}: ${this.data.title.toLowerCase()}`),
        this.heading,
        tabs),
      h("h2", { class: "sr" }, many ? "The agents side by side" : "The agent"),
      this.stage.element,
      this.notes(),
      h("h2", {}, "The evidence"),
      this.evidence,
      this.solved(),
      this.footer("This page needs no network; its policies run in your browser."),
    );
    this.stage.repaint();
  }

  /** A page of solved tables alone. */
  tables() {
    document.title = this.data.solved.map(({ name }) => name).join(", ");
    this.main.replaceChildren(
      h("header", { class: "page" },
        h("p", { class: "over" }, "deeprok report"),
        h("h1", {}, "What does nature do?"),
        h("p", { class: "headline" }, "Values of robust policies against the radius of the set, and the models that are worst for them.")),
      this.solved(),
      this.footer("This page needs no network."),
    );
  }

  solved() {
    const { solved } = this.data;
    if (!solved.length) return "";
    this.cards = h("div", { class: "evidence" }, solved.map((one, i) => drawSolved(one, this.theme, `solved-${i}`)));
    return h("section", { "aria-label": "Solved exactly" }, h("h2", {}, "Solved exactly"), this.cards);
  }

  footer(about) {
    return h("footer", {}, h("code", {}, this.data.command), h("p", {}, `deeprok ${this.data.version}. ${about}`));
  }

  notes() {
    const { agents } = this.scene;
    const posterior = agents.some((agent) => agent.posterior);
    return h(
      "details",
      { class: "notes" },
      h("summary", {}, "How to read it"),
      h("p", {}, "Every agent starts from the same state and gets the same random numbers. Blue is where it works on the " +
        "map, orange where it fails; the dot is where the sliders are, and a click on a cell or the arrow keys move them. " +
        "Under a slider, the bar is the range that training knew of, and the tick the nominal value."),
      posterior
        ? h("p", {}, "The band is Q of the best action ± 2 σ, with σ the spread of Q over 20 draws of the weights from " +
            "the posterior, corrected as the run corrects its own; a vote is the majority of the same draws.")
        : null,
      h("p", {}, "Keys: space plays and pauses, S steps, P pushes, N is a new start, T tries 20 starts, 0 is the nominal " +
        "model and G the largest gap."),
    );
  }

  open(index) {
    this.stage.play(false);
    this.index = index;
    this.build();
    this.main.querySelector("input[type=radio]:checked")?.focus();
  }

  retheme() {
    this.theme = readTheme();
    this.cards?.replaceChildren(...this.data.solved.map((one, i) => drawSolved(one, this.theme, `solved-${i}`)));
    if (!this.stage) return;
    this.stage.theme = this.theme;
    this.stage.maps();
    this.stage.repaint();
    this.evidence.replaceChildren(...drawEvidence(this.scene, this.theme, this.chosen));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { target } = event;
    if (target.closest("input:not([type=range]):not([type=radio]), textarea, select")) return;
    if (event.key === " " && target.closest("button, summary, input, a")) return;
    const name = { " ": "play", s: "step", p: "push", n: "start", t: "try", 0: "nominal", g: "gap" }[event.key.toLowerCase()];
    const button = name && this.stage?.element.querySelector(`[data-do="${name}"]`);
    if (!button) return;
    event.preventDefault();
    button.click();
  }

  /** Asks for newer data, and shows it without moving a slider. */
  async ask() {
    let answer;
    try {
      answer = await fetch(`data.json?have=${this.data.stamp ?? ""}`);
    } catch {
      return; // the server has ended
    }
    if (answer.status !== 200) return;
    this.refresh(await answer.json());
  }

  refresh(data) {
    const [{ env }, before] = [this.scene, this.stage];
    const open = [...this.main.querySelectorAll("details")].map((details) => details.open);
    const { activeElement } = document;
    const place = [...this.main.querySelectorAll("button, input, summary, .map")].indexOf(activeElement);
    const at = window.scrollY;
    this.data = data;
    this.index = Math.max(0, data.scenes.findIndex((scene) => scene.env === env));
    const same = this.scene.env === env;
    const playing = before.playing;
    before.play(false);
    before.playing = playing;
    this.build(same ? before : null);
    this.main.querySelectorAll("details").forEach((details, i) => (details.open = open[i] ?? details.open));
    this.main.querySelectorAll("button, input, summary, .map")[place]?.focus({ preventScroll: true });
    window.scrollTo(0, at);
  }
}

const page = new Page(JSON.parse(document.getElementById("data").textContent));
window.deeprok = { page, worldOf, outputs, readWeights, decide };
