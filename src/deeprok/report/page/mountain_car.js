// A car that is too weak for the hill before it, as deeprok.environments.mountain_car.

import { circle, line, polygon, turned } from "./drawing.js";

const WALL = -1.2;
const END = 0.6;
const GOAL = 0.5;
const SPEED_LIMIT = 0.07;

const height = (position) => 0.45 * Math.sin(3 * position) + 0.55;
const RIDGE = Array.from({ length: 91 }, (_, i) => WALL + ((END - WALL) * i) / 90).map((x) => [x, height(x)]);

export const mountainCar = {
  starts: 1,
  start: ([u]) => [-0.6 + 0.2 * u, 0],
  observe: (state) => state,

  step([position, speed], action, params) {
    let newSpeed = speed + (action - 1) * params.force - params.gravity * Math.cos(3 * position);
    newSpeed = Math.min(Math.max(newSpeed, -SPEED_LIMIT), SPEED_LIMIT);
    const place = Math.min(Math.max(position + newSpeed, WALL), END);
    if (place <= WALL && newSpeed < 0) newSpeed = 0;
    const terminated = (place >= GOAL && newSpeed >= 0) || Number.isNaN(place);
    return { state: [place, newSpeed], reward: -1, terminated };
  },

  pushed: ([position, speed], direction) => [
    position,
    Math.min(Math.max(speed + 0.02 * direction, -SPEED_LIMIT), SPEED_LIMIT),
  ],

  draw(states) {
    const [position] = states[states.length - 1];
    const slope = Math.atan(1.35 * Math.cos(3 * position));
    const direction = [Math.cos(slope), Math.sin(slope)];
    const at = [position, height(position)];
    const flag = height(GOAL);
    const body = [[-0.09, 0.03], [0.09, 0.03], [0.09, 0.07], [0.04, 0.11], [-0.05, 0.11], [-0.09, 0.07]];
    return {
      shapes: [
        polygon([[WALL, 0], ...RIDGE, [END, 0]], "pale"),
        line(RIDGE, "grey"),
        line([[GOAL, flag], [GOAL, flag + 0.2]], "ink"),
        polygon([[GOAL, flag + 0.2], [GOAL + 0.08, flag + 0.165], [GOAL, flag + 0.13]], "green"),
        polygon(turned(body, direction, at), "blue"),
        ...turned([[-0.05, 0.03], [0.05, 0.03]], direction, at).map((wheel) => circle(wheel, 0.03, "ink")),
      ],
      view: [WALL - 0.05, 0, END + 0.05, 1.25],
    };
  },
};
