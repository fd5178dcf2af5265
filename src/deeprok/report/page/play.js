// One agent in its environment: what `deeprok.environments.rollout` is to Python, with disturbances and memory.

import { argmax, decide, readWeights } from "./network.js";
import { generator, normals } from "./random.js";

/** The random numbers of a step, the same for every agent; step 0 is the start. */
function luckOf(seed, episode, step) {
  return generator(seed, episode, step);
}

export class Player {
  /** `settings` of the methods: params by name, epsilon, and acting ("mean", "draw" or "vote"). */
  constructor(scene, agent, world) {
    this.scene = scene;
    this.agent = agent;
    this.world = world;
    this.weights = readWeights(agent);
  }

  begin(settings, seed, episode) {
    this.seed = seed;
    this.episode = episode;
    const uniform = luckOf(seed, episode, 0);
    const u = Array.from({ length: this.world.starts }, uniform);
    this.states = [this.world.start(u, settings.params)];
    this.decided = [];
    this.total = 0;
    this.ending = null;
    this.action = null;
    this.history = [];
    const observation = this.blurred(this.world.observe(this.state), settings, uniform);
    const { memory } = this.agent;
    const past = memory ? memory.steps * (memory.observations + memory.actions) : 0;
    this.seen = [...observation, ...new Array(past).fill(0)];
    this.opinion = this.think(settings);
  }

  get state() {
    return this.states[this.states.length - 1];
  }

  get steps() {
    return this.states.length - 1;
  }

  think(settings) {
    return decide(this.agent, this.weights, this.seen, settings.acting, this.episode);
  }

  /** Takes a step, unless the episode has ended. */
  step(settings) {
    if (this.ending) return;
    const uniform = luckOf(this.seed, this.episode, this.steps + 1);
    const coin = uniform();
    const anything = this.randomAction(uniform);
    this.opinion = this.think(settings);
    const action = coin < settings.epsilon ? anything : this.actionOf(this.opinion.choice);
    this.decided.push(action);
    const late = Math.round(settings.params.action_delay ?? 0);
    const index = this.decided.length - 1 - late;
    this.action =
      index >= 0 ? this.decided[index] : this.randomAction(luckOf(this.seed, this.episode, index - 1));
    const outcome = this.world.step(this.state, this.action, settings.params, this.scene.settings);
    this.states.push(outcome.state);
    this.total += outcome.reward;
    this.note();
    const observation = this.blurred(this.world.observe(this.state), settings, uniform);
    this.seen = this.agent.memory ? this.remembering(observation, action) : observation;
    if (outcome.terminated || this.steps >= this.scene.horizon) {
      this.ending = this.total > this.scene.success_return ? "succeeded" : "failed";
    }
  }

  /** Keeps what was thought of the best action, for the chart. */
  note() {
    const { values, deviation } = this.opinion;
    const best = argmax(values);
    this.history.push({ value: values[best], deviation: deviation ? deviation[best] : 0 });
  }

  push(direction) {
    if (!this.ending) this.states[this.states.length - 1] = this.world.pushed(this.state, direction);
  }

  /** The observation with the noise of the sensors, whose numbers are drawn whether there is noise or not. */
  blurred(observation, settings, uniform) {
    const deviation = settings.params.sensor_noise ?? 0;
    const noise = normals(uniform, observation.length);
    if (!deviation) return observation;
    return observation.map((value, i) => value + deviation * this.scene.observation_scale[i] * noise[i]);
  }

  /** The observation with the past behind it, newest first. */
  remembering(observation, action) {
    const { observations, actions, steps } = this.agent.memory;
    const own = this.seen.slice(0, observations);
    const past = [...own, ...this.encoded(action), ...this.seen.slice(observations)];
    return [...observation, ...past.slice(0, steps * (observations + actions))];
  }

  encoded(action) {
    const { actions, interval } = this.scene;
    if (actions) return actions.map((_, i) => (i === action ? 1 : 0));
    return action.map((value, i) => {
      const width = interval.high[i] - interval.low[i];
      return width > 0 ? (2 * (value - interval.low[i])) / width - 1 : 0;
    });
  }

  actionOf(choice) {
    return this.scene.actions ? argmax(choice) : this.placed(choice);
  }

  /** Numbers at places between −1 and 1. */
  placed(places) {
    const { low, high } = this.scene.interval;
    return places.map(
      (place, i) => low[i] + (high[i] - low[i]) * (0.5 * (Math.min(Math.max(place, -1), 1) + 1)),
    );
  }

  randomAction(uniform) {
    const { actions, interval } = this.scene;
    if (actions) return Math.min(Math.floor(uniform() * actions.length), actions.length - 1);
    return this.placed(interval.low.map(() => 2 * uniform() - 1));
  }
}

/** Plays whole episodes and returns how many succeeded. */
export function successes(player, settings, seed, episodes) {
  let count = 0;
  for (const episode of episodes) {
    player.begin(settings, seed, episode);
    while (!player.ending) player.step(settings);
    count += player.ending === "succeeded";
  }
  return count;
}
