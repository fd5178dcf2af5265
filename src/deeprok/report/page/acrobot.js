// A double pendulum with a motor at its elbow, as deeprok.environments.acrobot.

import { circle, line } from "./drawing.js";

const LIMITS = [4 * Math.PI, 9 * Math.PI];

/** Speeds and accelerations; in the book's symbols. */
function derivative([theta1, theta2, dtheta1, dtheta2], torque, params) {
  const { link_mass_1: m1, link_mass_2: m2, link_length_1: l1, gravity: g } = params;
  const { link_centre_1: lc1, link_centre_2: lc2, link_inertia: inertia } = params;
  const [cos, sin] = [Math.cos(theta2), Math.sin(theta2)];
  const d1 = m1 * (lc1 * lc1) + m2 * (l1 * l1 + lc2 * lc2 + 2 * l1 * lc2 * cos) + 2 * inertia;
  const d2 = m2 * (lc2 * lc2 + l1 * lc2 * cos) + inertia;
  const phi2 = m2 * lc2 * g * Math.sin(theta1 + theta2);
  const phi1 =
    -m2 * l1 * lc2 * (dtheta2 * dtheta2) * sin -
    2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin +
    (m1 * lc1 + m2 * l1) * g * Math.sin(theta1) +
    phi2;
  const ddtheta2 =
    (torque + (d2 / d1) * phi1 - m2 * l1 * lc2 * (dtheta1 * dtheta1) * sin - phi2) /
    (m2 * (lc2 * lc2) + inertia - (d2 * d2) / d1);
  const ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
  return [dtheta1, dtheta2, ddtheta1, ddtheta2];
}

const moved = (state, by, factor) => state.map((value, i) => value + factor * by[i]);

const wrapped = (angle) => {
  const rest = (angle + Math.PI) % (2 * Math.PI);
  return (rest < 0 ? rest + 2 * Math.PI : rest) - Math.PI;
};

export const acrobot = {
  starts: 4,
  start: (u, params) => u.map((value) => (2 * value - 1) * params.initial_range),
  observe: ([upper, lower, upperSpeed, lowerSpeed]) => [
    Math.cos(upper), Math.sin(upper), Math.cos(lower), Math.sin(lower), upperSpeed, lowerSpeed,
  ],

  step(state, action, params) {
    const torque = params.torque * (action - 1);
    const half = 0.5 * params.time_step;
    const k1 = derivative(state, torque, params);
    const k2 = derivative(moved(state, k1, half), torque, params);
    const k3 = derivative(moved(state, k2, half), torque, params);
    const k4 = derivative(moved(state, k3, params.time_step), torque, params);
    const sixth = params.time_step / 6;
    const next = state.map((value, i) => value + sixth * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]));
    const [upper, lower] = [wrapped(next[0]), wrapped(next[1])];
    const speeds = LIMITS.map((limit, i) => Math.min(Math.max(next[2 + i], -limit), limit));
    const arrived = -Math.cos(upper) - Math.cos(upper + lower) > 1;
    const after = [upper, lower, ...speeds];
    return { state: after, reward: arrived ? 0 : -1, terminated: arrived || after.some(Number.isNaN) };
  },

  pushed: ([upper, lower, upperSpeed, lowerSpeed], direction) => [upper, lower, upperSpeed + 1.5 * direction, lowerSpeed],

  draw(states, params) {
    const [upper, lower] = states[states.length - 1];
    const length = params.link_length_1;
    const elbow = [length * Math.sin(upper), -length * Math.cos(upper)];
    const tip = [elbow[0] + length * Math.sin(upper + lower), elbow[1] - length * Math.cos(upper + lower)];
    const reach = 2.2 * length;
    return {
      shapes: [
        line([[-reach, length], [reach, length]], "green", 0.8),
        line([[0, 0], elbow], "ink", 2.4),
        line([elbow, tip], "blue", 2.4),
        circle([0, 0], 0.08 * length, "grey"),
        circle(elbow, 0.08 * length, "orange"),
      ],
      view: [-reach, -reach, reach, reach],
    };
  },
};
