// The environments that run in the browser, by the names that runs have for them.
//
// Each has the number of uniform numbers that a start takes (`starts`), and the functions `start(u, params)`,
// `observe(state)`, `step(state, action, params, settings)`, `pushed(state, direction)` and `draw(states, params)`.

import { acrobot } from "./acrobot.js";
import { cartpole } from "./cartpole.js";
import { mountainCar } from "./mountain_car.js";
import { pendulum, swingUp } from "./pendulum.js";
import { road } from "./road.js";
import { rocket } from "./rocket.js";

const WORLDS = new Map([
  ["acrobot", acrobot],
  ["cartpole", cartpole],
  ["hard_cartpole", cartpole],
  ["mountain_car", mountainCar],
  ["pendulum", pendulum],
  ["road", road],
  ["rocket", rocket],
  ["swing_up", swingUp],
]);

/** The environment of that name, or undefined if the browser has none. */
export const worldOf = (name) => WORLDS.get(name);
