// Cart-Pole, as deeprok.environments.cartpole.

import { circle, line, polygon, rectangle } from "./drawing.js";

const POSITION_LIMIT = 2.4;
const ANGLE_LIMIT = (12 * 2 * Math.PI) / 360;

export const cartpole = {
  starts: 4,
  start: (u, params) => u.map((value) => (2 * value - 1) * params.initial_range),
  observe: (state) => state,

  step([x, xDot, theta, thetaDot], action, params, settings) {
    const force = action === 1 ? params.force : -params.force;
    const total = params.cart_mass + params.pole_mass;
    const moment = params.pole_mass * params.pole_length;
    const [cos, sin] = [Math.cos(theta), Math.sin(theta)];
    const push = (force + moment * thetaDot * thetaDot * sin) / total;
    const thetaAcc =
      (params.gravity * sin - cos * push) / (params.pole_length * (4 / 3 - (params.pole_mass * cos * cos) / total));
    const xAcc = push - (moment * thetaAcc * cos) / total;
    const newXDot = xDot + params.time_step * xAcc;
    const newThetaDot = thetaDot + params.time_step * thetaAcc;
    const moved = settings.integrator === "euler" ? [xDot, thetaDot] : [newXDot, newThetaDot];
    const newX = x + params.time_step * moved[0];
    const newTheta = theta + params.time_step * moved[1];
    const terminated = !(Math.abs(newX) <= POSITION_LIMIT && Math.abs(newTheta) <= ANGLE_LIMIT);
    const reward = terminated ? settings.failing_reward : 1;
    return { state: [newX, newXDot, newTheta, newThetaDot], reward, terminated };
  },

  pushed: ([x, xDot, theta, thetaDot], direction) => [x, xDot, theta, thetaDot + 0.4 * direction],

  draw(states, params) {
    const [x, , theta] = states[states.length - 1];
    const length = 2 * params.pole_length;
    const axle = 0.15;
    const end = (angle) => [x + length * Math.sin(angle), axle + length * Math.cos(angle)];
    const fan = [-1, -0.5, 0, 0.5, 1].map((share) => end(ANGLE_LIMIT * share));
    return {
      shapes: [
        polygon([[x, axle], ...fan], "pale"),
        line([[-POSITION_LIMIT, 0], [POSITION_LIMIT, 0]], "grey"),
        ...[-POSITION_LIMIT, POSITION_LIMIT].map((post) => line([[post, 0], [post, 0.25]], "grey")),
        polygon(rectangle(x - 0.3, 0, x + 0.3, 0.3), "ink"),
        line([[x, axle], end(theta)], "blue", 2.2),
        circle([x, axle], 0.05, "pale"),
      ],
      view: [-POSITION_LIMIT - 0.3, -0.2, POSITION_LIMIT + 0.3, axle + Math.max(length, 1) + 0.2],
    };
  },
};
