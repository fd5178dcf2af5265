// The stage: agents of one environment side by side, from the same starts and with the same random numbers.

import { clean, paint } from "./drawing.js";
import { choice, h, number, percent, words } from "./elements.js";
import { drawMap, measuresOf, scaleOf, tellingCell } from "./maps.js";
import { Player, successes } from "./play.js";
import { worldOf } from "./worlds.js";

/** Starts that are tried at once, and the seed that their random numbers have; what is watched has another. */
const TRIED = 20;
const [WATCHED_SEED, TRIED_SEED] = [1, 2];

/** Milliseconds for which the end of an episode is seen, and steps of the chart of Q. */
const PAUSE = 1100;
const SHOWN = 120;

/** The smallest difference in success that a page begins with. */
const LEAST_GAP = 0.05;

const ACTING = [["mean", "mean weights"], ["draw", "one draw"], ["vote", "vote of 20"]];
const SPEEDS = [["0.25", "¼×"], ["0.5", "½×"], ["1", "1×"], ["2", "2×"], ["4", "4×"]];

export class Stage {
  /** `before` is the stage that this one takes the place of, where the data has changed under it. */
  constructor(scene, theme, reduced, before = null) {
    this.scene = scene;
    this.theme = theme;
    this.reduced = reduced;
    this.world = worldOf(scene.env);
    this.measure = measuresOf(scene).some(([name]) => name === before?.measure) ? before.measure : "success";
    this.speed = before?.speed ?? 1;
    this.episode = before?.episode ?? 0;
    this.playing = false;
    this.clock = 0;
    this.waiting = 0;
    this.settings = before?.settings ?? { params: this.nominal(), epsilon: 0, acting: "mean" };
    this.inputs = new Map();
    this.panes = [];
    this.element = h("section", { class: "stage", "aria-label": `${words(scene.name)}, live` });
    this.build();
    const cell = tellingCell(scene.agents);
    if (cell && cell.gap >= LEAST_GAP && !before) this.move(cell.params);
    else this.move({});
    this.restart();
    if (before ? before.playing : !reduced) this.play(true);
  }

  get live() {
    return Boolean(this.world) && this.panes.some((pane) => pane.player);
  }

  nominal() {
    return Object.fromEntries(this.scene.sliders.map((slider) => [slider.name, slider.nominal]));
  }

  // What stands on it.

  build() {
    const { scene } = this;
    this.status = h("p", { class: "status", role: "status", "aria-live": "polite" });
    this.list = h("div", { class: "panes" });
    this.element.append(this.transport(), h("div", { class: "columns" }, this.sliders(), this.list), this.status);
    for (const agent of scene.agents) this.list.append(this.pane(agent).element);
  }

  transport() {
    const button = (name, said, key, act) =>
      h("button", { type: "button", "data-do": name, title: `${said} (key ${key})`, onclick: act }, said);
    const bar = h("div", { class: "transport", role: "toolbar", "aria-label": "Playing" });
    if (this.world) {
      this.playButton = button("play", "Play", "space", () => this.play(!this.playing));
      bar.append(
        this.playButton,
        button("step", "Step", "S", () => this.single()),
        button("push", "Push", "P", () => this.push()),
        button("start", "New start", "N", () => this.next()),
        button("try", `Try ${TRIED} starts`, "T", () => this.tryStarts()),
      );
    }
    bar.append(button("nominal", "Nominal", "0", () => this.move(this.nominal())));
    if (tellingCell(this.scene.agents)) bar.append(button("gap", "Largest gap", "G", () => this.toGap()));
    const more = h("div", { class: "switches" });
    if (this.world) more.append(choice("Speed", SPEEDS, String(this.speed), (value) => (this.speed = Number(value))));
    if (this.world && this.scene.agents.some((agent) => agent.posterior)) {
      more.append(choice("Posteriors act by", ACTING, this.settings.acting, (value) => {
        this.settings.acting = value;
        this.forget();
        this.say(`agents with a posterior act by ${new Map(ACTING).get(value)}`);
      }));
    }
    if (this.scene.agents.some((agent) => agent.map)) {
      const shown = measuresOf(this.scene);
      this.legend = h("span", { class: "scale" });
      more.append(choice("Maps show", shown, this.measure, (value) => {
        this.measure = value;
        this.maps();
      }), this.legend);
    }
    return h("div", { class: "controls" }, bar, more);
  }

  sliders() {
    const rows = this.scene.sliders.map((slider) => this.slider(slider));
    const boxed = rows.filter((_, i) => this.scene.sliders[i].box);
    const others = rows.filter((_, i) => !this.scene.sliders[i].box);
    const epsilon = this.slider({
      name: "epsilon", said: "ε", unit: "", meaning: "probability of a random action", nominal: 0, low: 0, high: 1,
      box: null, whole: false,
    });
    return h(
      "form",
      { class: "sliders", "aria-label": "Parameters", onsubmit: (event) => event.preventDefault() },
      boxed,
      epsilon,
      others.length ? h("details", { open: !boxed.length }, h("summary", {}, "All parameters"), others) : null,
    );
  }

  slider(slider) {
    const { name, low, high, unit, box, nominal } = slider;
    const id = `slider-${this.scene.env}-${name}`.replace(/[^\w-]/g, "-");
    const share = (value) => `${(100 * (value - low)) / (high - low || 1)}%`;
    const input = h("input", {
      type: "range", id, min: low, max: high, step: slider.whole ? 1 : (high - low) / 400, "data-name": name,
      oninput: () => this.slid(name, Number(input.value)),
    });
    const output = h("output", { for: id });
    this.inputs.set(name, { input, output, unit });
    const marks = h(
      "span",
      { class: "marks", "aria-hidden": "true" },
      box ? h("span", { class: "box", style: `left:${share(box[0])};right:calc(100% - ${share(box[1])})` }) : null,
      h("span", { class: "nominal", style: `left:${share(nominal)}` }),
    );
    return h(
      "div",
      { class: "slider", title: slider.meaning },
      h("label", { for: id }, slider.said ?? words(name).replace(/^./, (letter) => letter.toUpperCase())),
      output,
      h("span", { class: "track" }, marks, input),
    );
  }

  pane(agent) {
    const player = this.world && agent.network && this.fits(agent) ? new Player(this.scene, agent, this.world) : null;
    const canvas = h("canvas", { class: "picture", role: "img", "aria-label": `${agent.name} in its environment` });
    const chart = h("canvas", { class: "q", role: "img", "aria-label": `value of the best action of ${agent.name}` });
    const pane = {
      agent,
      player,
      canvas,
      chart,
      tally: [0, 0],
      tried: null,
      badge: h("span", { class: "badge" }),
      action: h("span", {}),
      total: h("span", {}),
      record: h("p", { class: "record" }),
      map: h("div", { class: "map-place" }),
    };
    pane.element = h(
      "article",
      { class: "pane", "data-agent": agent.name, "data-state": "running" },
      h("header", {}, h("h3", { title: agent.folder }, agent.name),
        h("span", { class: "algorithm" }, agent.name.endsWith(agent.algorithm) ? "" : agent.algorithm)),
      player
        ? [
            h("div", { class: "view" }, canvas, pane.badge),
            h("p", { class: "facts" }, pane.action, pane.total),
            h("div", { class: "q-place" }, chart),
            pane.record,
          ]
        : h("p", { class: "unseen" }, this.world
            ? agent.unseen || "its policy does not fit this environment"
            : "this environment does not run in the browser"),
      pane.map,
    );
    this.panes.push(pane);
    return pane;
  }

  fits(agent) {
    const u = new Array(this.world.starts).fill(0.5);
    const seen = this.world.observe(this.world.start(u, this.nominal())).length;
    const { memory } = agent;
    return agent.network.sizes[0] === seen + (memory ? memory.steps * (memory.observations + memory.actions) : 0);
  }

  // What is set.

  slid(name, value) {
    if (name === "epsilon") this.settings.epsilon = value;
    else this.settings.params[name] = value;
    this.show();
    this.forget();
    this.repaint();
    // A slider that is dragged moves more often than a screen shows.
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => this.maps());
  }

  move(params) {
    Object.assign(this.settings.params, params);
    this.show();
    this.forget();
    this.maps();
    this.repaint();
    if (this.live && !this.playing && this.panes.some((pane) => pane.player?.states)) this.restart();
  }

  show() {
    for (const [name, { input, output, unit }] of this.inputs) {
      const value = name === "epsilon" ? this.settings.epsilon : this.settings.params[name];
      input.min = Math.min(Number(input.min), value);
      input.max = Math.max(Number(input.max), value);
      input.value = value;
      output.textContent = `${number(value)} ${unit}`.trim();
      input.setAttribute("aria-valuetext", output.textContent);
    }
  }

  /** Other settings, other statistics. */
  forget() {
    this.say("");
    for (const pane of this.panes) {
      pane.tally = [0, 0];
      pane.tried = null;
      this.record(pane);
    }
  }

  toGap() {
    const { params } = tellingCell(this.scene.agents);
    this.move({ ...this.nominal(), ...params });
    this.next();
  }

  say(sentence) {
    this.status.textContent = sentence;
  }

  // What happens.

  play(on) {
    this.playing = on && this.live;
    if (!this.playButton) return;
    this.playButton.textContent = this.playing ? "Pause" : "Play";
    this.playButton.setAttribute("aria-pressed", String(this.playing));
    if (this.playing) {
      this.last = null;
      requestAnimationFrame((time) => this.frame(time));
    }
  }

  restart() {
    this.waiting = this.clock = 0;
    for (const { player } of this.panes) player?.begin(this.settings, WATCHED_SEED, this.episode);
    this.repaint();
  }

  next() {
    this.episode += 1;
    this.restart();
  }

  single() {
    this.play(false);
    if (this.over()) this.next();
    else this.advance();
    this.paint(0);
  }

  push() {
    const direction = this.steps() % 2 ? -1 : 1;
    for (const { player } of this.panes) player?.push(direction);
    this.repaint();
    this.say("pushed");
  }

  steps() {
    return Math.max(0, ...this.panes.map(({ player }) => (player ? player.steps : 0)));
  }

  over() {
    return this.panes.every(({ player }) => !player || player.ending);
  }

  advance() {
    for (const pane of this.panes) {
      const { player } = pane;
      if (!player || player.ending) continue;
      player.step(this.settings);
      if (player.ending) {
        pane.tally[0] += player.ending === "succeeded";
        pane.tally[1] += 1;
        this.record(pane);
      }
    }
  }

  /** Steps in a second, at least ten: a road seen in real time is slow. */
  get rate() {
    const own = this.scene.seconds ? 1 / this.scene.seconds : 30;
    return Math.min(Math.max(own, 10), 60) * this.speed;
  }

  frame(time) {
    if (!this.playing || !this.element.isConnected) return;
    const passed = this.last === null ? 0 : Math.min(time - this.last, 100);
    this.last = time;
    if (this.over()) {
      this.waiting += passed;
      if (this.waiting > PAUSE / Math.max(1, this.speed)) this.next();
    } else {
      this.clock += (passed * this.rate) / 1000;
      while (this.clock >= 1 && !this.over()) {
        this.advance();
        this.clock -= 1;
      }
    }
    this.paint(this.reduced ? 0 : this.clock);
    requestAnimationFrame((again) => this.frame(again));
  }

  /** Plays so many starts of every agent out of sight, and says how many succeeded. */
  async tryStarts() {
    const button = this.element.querySelector('[data-do="try"]');
    if (button.disabled) return;
    button.disabled = true;
    const settings = { ...this.settings, params: { ...this.settings.params } };
    const hidden = this.panes.map(({ agent, player }) => player && new Player(this.scene, agent, this.world));
    const counts = this.panes.map(() => 0);
    for (let episode = 0; episode < TRIED; episode++) {
      hidden.forEach((player, i) => {
        if (player) counts[i] += successes(player, settings, TRIED_SEED, [episode]);
      });
      button.textContent = `${episode + 1} of ${TRIED}`;
      await new Promise((resolve) => setTimeout(resolve));
    }
    button.textContent = `Try ${TRIED} starts`;
    button.disabled = false;
    this.panes.forEach((pane, i) => {
      if (!pane.player) return;
      pane.tried = counts[i];
      this.record(pane);
    });
    const said = this.panes.filter((pane) => pane.player).map((pane) => `${pane.agent.name} ${pane.tried}`);
    this.say(`of ${TRIED} starts succeeded: ${said.join(", ")}`);
  }

  // What is seen.

  record(pane) {
    const [succeeded, ended] = pane.tally;
    const parts = [];
    if (pane.tried !== null) parts.push(`${pane.tried} of ${TRIED} starts succeed`);
    else if (ended) parts.push(`${succeeded} of ${ended} succeeded`);
    pane.record.textContent = parts.join(" · ") || "\u00a0";
    pane.record.dataset.tried = pane.tried ?? "";
  }

  maps() {
    const ends = this.legend && scaleOf(this.scene, this.measure, this.settings.params);
    this.legend?.replaceChildren(...ends ? [ends[0], h("span", { class: "bar", "aria-hidden": "true" }), ends[1]] : []);
    for (const pane of this.panes) {
      if (!pane.agent.map) continue;
      const focused = pane.map.contains(document.activeElement);
      pane.map.replaceChildren(drawMap(this, pane.agent));
      if (focused) this.focusMap(pane.agent);
    }
  }

  focusMap(agent) {
    this.panes.find((pane) => pane.agent === agent).map.querySelector("svg").focus();
  }

  paint(fraction) {
    for (const pane of this.panes) if (pane.player?.states) this.paintPane(pane, fraction);
  }

  /** Paints everything anew, as after a change of size, of colours or of parameters. */
  repaint() {
    for (const pane of this.panes) pane.painted = pane.size = null;
    this.paint(0);
  }

  paintPane(pane, fraction) {
    const { player, canvas, chart } = pane;
    const state = player.ending ?? "running";
    const moment = `${player.episode} ${player.steps} ${state}`;
    if (pane.painted === moment && player.ending) return;
    pane.size ??= [canvas.clientWidth || 240, canvas.clientHeight || 150, chart.clientWidth || 240, chart.clientHeight || 46];
    const seen = player.states.filter((each) => each.every(Number.isFinite)); // a simulation may go wrong
    const states = player.ending ? seen : between(seen, fraction);
    const drawing = this.world.draw(states, this.settings.params);
    paint(canvas, drawing, pane.size[0], pane.size[1], this.theme.colours);
    if (pane.painted === moment) return;
    pane.painted = moment;
    pane.element.dataset.state = state;
    pane.badge.textContent = player.ending ?? "";
    const { actions } = this.scene;
    const done = player.action;
    pane.action.textContent = done === null ? "" : actions ? actions[done] : number(done[0], 2);
    pane.total.textContent = `step ${player.steps} · return ${number(player.total)}`;
    this.paintValues(pane);
  }

  /** Q of the best action, and ± 2 σ of it where there is a posterior. */
  paintValues({ agent, player, chart, size }) {
    if (!agent.q) {
      chart.parentElement.hidden = true;
      return;
    }
    const [, , width, height] = size;
    const pen = clean(chart, width, height);
    const shown = player.history.slice(-SHOWN);
    const { ink, blue, grey } = this.theme.colours;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = grey;
    pen.textBaseline = "top";
    pen.textAlign = "left";
    if (!shown.length) return void pen.fillText("Q", 0, 1);
    const lows = shown.map(({ value, deviation }) => value - 2 * deviation);
    const highs = shown.map(({ value, deviation }) => value + 2 * deviation);
    let [low, high] = [Math.min(...lows), Math.max(...highs)];
    const least = 0.02 * Math.max(Math.abs(low), Math.abs(high), 1e-6);
    if (high - low < least) [low, high] = [low - least, high + least];
    const x = (i) => 2 + ((width - 4) * i) / (SHOWN - 1);
    const y = (value) => 15 + (height - 18) * (1 - (value - low) / (high - low));
    if (agent.posterior) {
      pen.beginPath();
      highs.forEach((value, i) => pen.lineTo(x(i), y(value)));
      for (let i = lows.length - 1; i >= 0; i--) pen.lineTo(x(i), y(lows[i]));
      pen.globalAlpha = 0.22;
      pen.fillStyle = blue;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.beginPath();
    shown.forEach(({ value }, i) => pen.lineTo(x(i), y(value)));
    pen.strokeStyle = ink;
    pen.lineWidth = 1.4;
    pen.stroke();
    const { value, deviation } = shown[shown.length - 1];
    const said = `Q ${number(value)}${agent.posterior ? ` ± ${number(2 * deviation, 2)}` : ""}`;
    pen.fillStyle = grey;
    pen.textAlign = "right";
    pen.fillText(said, width - 2, 1);
  }
}

/** The states with one between the last two in place of the last one; jumps, as of angles, are not crossed. */
function between(states, fraction) {
  if (states.length < 2) return states;
  const [before, after] = states.slice(-2);
  if (fraction >= 1) return states;
  const jumps = after.some((value, i) => Math.abs(value - before[i]) > Math.PI && Math.abs(value) <= Math.PI);
  if (jumps) return states;
  const middle = before.map((value, i) => value + (after[i] - value) * fraction);
  return [...states.slice(0, -1), middle];
}

/** What the maps say in one sentence. */
export function headline(scene) {
  const cell = tellingCell(scene.agents);
  if (!cell) return ["Move the sliders, and see what each agent does."];
  const units = Object.fromEntries(scene.sliders.map((slider) => [slider.name, slider.unit]));
  const place = Object.entries(cell.params)
    .map(([name, value]) => `${words(name)} = ${number(value)} ${units[name] ?? ""}`.trim())
    .join(" and ");
  const name = ({ agent }, kind) => h("strong", { class: kind }, agent.name);
  const of = ({ success }) => percent(success);
  if (cell.alone) return [`At its worst, with ${place}, `, name(cell.worst, "bad"), ` succeeds in ${of(cell.worst)} of episodes.`];
  if (cell.gap < LEAST_GAP) {
    const mapped = scene.agents.filter((agent) => agent.map);
    const nominal = mapped.map((agent) => `${agent.name} ${percent(agent.map.nominal)}`).join(", ");
    return [`The agents differ by less than ${100 * LEAST_GAP} points everywhere. On the nominal model: ${nominal}.`];
  }
  return [
    `With ${place}, `, name(cell.best, "good"), ` succeeds in ${of(cell.best)} of episodes, `,
    name(cell.worst, "bad"), ` in ${of(cell.worst)}.`,
  ];
}
