// The pendulum with a torque, and its swing-up with three, as deeprok.environments.pendulum and swing_up.

import { circle, line, polygon } from "./drawing.js";

const SPEED_LIMIT = 8;
const UPRIGHT = 0.3;

const fromUpright = (angle) => {
  const rest = (angle + Math.PI) % (2 * Math.PI);
  return (rest < 0 ? rest + 2 * Math.PI : rest) - Math.PI;
};

function swing([angle, speed], torque, params) {
  const pull = ((3 * params.gravity) / (2 * params.length)) * Math.sin(angle);
  const push = (3 / (params.mass * (params.length * params.length))) * torque;
  const newSpeed = Math.min(Math.max(speed + (pull + push) * params.time_step, -SPEED_LIMIT), SPEED_LIMIT);
  return [angle + newSpeed * params.time_step, newSpeed];
}

const rodEnd = (angle, length) => [-length * Math.sin(angle), length * Math.cos(angle)];

function rod(states, params) {
  const { length } = params;
  const way = Array.from({ length: 73 }, (_, i) => rodEnd((2 * Math.PI * i) / 72, length));
  const reach = 1.15 * length;
  return {
    shapes: [
      line(way, "grey", 0.3),
      line([[0, 0], rodEnd(states[states.length - 1][0], length)], "blue", 5),
      circle([0, 0], 0.05 * length, "ink"),
    ],
    view: [-reach, -reach, reach, reach],
  };
}

const common = {
  starts: 2,
  start: ([a, b]) => [(2 * a - 1) * Math.PI, 2 * b - 1],
  observe: ([angle, speed]) => [Math.cos(angle), Math.sin(angle), speed],
  pushed: ([angle, speed], direction) => [
    angle,
    Math.min(Math.max(speed + 2.5 * direction, -SPEED_LIMIT), SPEED_LIMIT),
  ],
};

export const pendulum = {
  ...common,
  step(state, action, params) {
    const [angle, speed] = state;
    const torque = params.torque * Math.min(Math.max(action[0], -1), 1);
    const cost = fromUpright(angle) ** 2 + 0.1 * (speed * speed) + 0.001 * (torque * torque);
    return { state: swing(state, torque, params), reward: -cost, terminated: false };
  },
  draw: rod,
};

export const swingUp = {
  ...common,
  step(state, action, params) {
    const next = swing(state, params.torque * (action - 1), params);
    const reward = Math.abs(fromUpright(next[0])) <= UPRIGHT ? 1 : 0;
    return { state: next, reward, terminated: next.some(Number.isNaN) };
  },
  draw(states, params) {
    const seen = rod(states, params);
    const fan = [-1, -0.5, 0, 0.5, 1].map((share) => rodEnd(UPRIGHT * share, params.length));
    return { ...seen, shapes: [polygon([[0, 0], ...fan], "meadow"), ...seen.shapes] };
  },
};
