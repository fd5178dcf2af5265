// A car on a road with curves, as deeprok.environments.road.

import { circle, line, polygon, rectangle, text, turned } from "./drawing.js";

const LENGTH = 200;
const TOP_SPEED = 40;
const STARTS = [5, 15];
const CURVES = [[50, 25, 12], [110, 12, 10], [165, 40, 12]];
const AHEAD = [0, 10, 20, 40];
const STEP_COST = 0.01;
const TURNS = [-1, -1, 1];
const SIDES = ["right", "left", "right"];

const bends = (place) =>
  CURVES.map(([centre, radius, width]) => {
    const squared = ((place - centre) / width) ** 2;
    return Math.exp(-(squared * squared)) / radius;
  });
const curvature = (place) => bends(place).reduce((sum, bend) => sum + bend, 0);

/** The road from above: places every quarter metre, with the heading there. */
const PLAN = (() => {
  const step = (LENGTH + 8) / 832;
  const points = [];
  let [x, y, heading] = [0, 0, 1.25];
  for (let i = 0; i < 833; i++) {
    points.push([x, y, heading]);
    x += Math.cos(heading) * step;
    y += Math.sin(heading) * step;
    heading += bends(i * step).reduce((sum, bend, k) => sum + TURNS[k] * bend, 0) * step;
  }
  return { step, points };
})();

function at(place, beside = 0) {
  const index = Math.min(Math.max(place / PLAN.step, 0), PLAN.points.length - 1);
  const [before, after] = [PLAN.points[Math.floor(index)], PLAN.points[Math.ceil(index)]];
  const [x, y, heading] = before.map((value, i) => value + (after[i] - value) * (index - Math.floor(index)));
  const direction = [Math.cos(heading), Math.sin(heading)];
  return { point: [x - beside * direction[1], y + beside * direction[0]], direction };
}

/** The point of the plan nearest a place, which is enough for a dot. */
const on = (place) => PLAN.points[Math.min(Math.round(place / PLAN.step), PLAN.points.length - 1)];

const XS = PLAN.points.map(([x]) => x);
const YS = PLAN.points.map(([, y]) => y);
const VIEW = [Math.min(...XS) - 30, Math.min(...YS) - 6, Math.max(...XS) + 6, Math.max(...YS) + 8];

export const road = {
  starts: 1,
  start: ([u]) => [0, STARTS[0] + (STARTS[1] - STARTS[0]) * u],
  observe: ([place, speed]) => [place, speed, ...AHEAD.map((distance) => curvature(place + distance))],

  step([place, speed], action, params) {
    const grip = params.friction * params.gravity;
    const push = action === 0 ? -params.braking * grip : action === 2 ? params.throttle : 0;
    const acceleration = push - params.drag * (speed * speed);
    const newSpeed = Math.min(Math.max(speed + params.time_step * acceleration, 0), TOP_SPEED);
    const newPlace = place + params.time_step * 0.5 * (speed + newSpeed);
    const crashed = !(newSpeed * newSpeed * curvature(newPlace) <= grip);
    const arrived = !crashed && newPlace >= LENGTH;
    const reward = crashed ? -1 : arrived ? 1 : -STEP_COST;
    return { state: [newPlace, newSpeed], reward, terminated: crashed || arrived };
  },

  pushed: ([place, speed], direction) => [place, Math.min(Math.max(speed + 3 * direction, 0), TOP_SPEED)],

  draw(states, params) {
    const grip = params.friction * params.gravity;
    const [place, speed] = states[states.length - 1];
    const skids = !(speed * speed * curvature(place) <= grip);
    const near = CURVES.map(([centre]) => Math.abs(place - centre));
    const outwards = -TURNS[near.indexOf(Math.min(...near))];
    const { point, direction } = at(place, skids ? 8 * outwards : 0);
    const tilt = skids ? 0.7 * outwards : 0;
    const [cos, sin] = direction;
    const heading = [cos * Math.cos(tilt) - sin * Math.sin(tilt), sin * Math.cos(tilt) + cos * Math.sin(tilt)];
    const goal = at(LENGTH);
    return {
      shapes: [
        line(PLAN.points.filter((_, i) => i % 16 === 0).map(([x, y]) => [x, y]), "pale", 6),
        polygon(turned(rectangle(-1, -4.5, 1, 4.5), goal.direction, goal.point), "green"),
        ...states.slice(0, -1).map(([before]) => circle(on(before), 0.7, "blue")),
        polygon(turned(rectangle(-4.5, -2.2, 4.5, 2.2), heading, point), skids ? "red" : "ink"),
        polygon(turned(rectangle(0.3, -1.6, 2.2, 1.6), heading, point), "pale"),
        ...CURVES.map(([centre, radius], i) =>
          text(at(centre, -10 * TURNS[i]).point, `≤ ${Math.sqrt(grip * radius).toFixed(1)} m/s`, "grey", SIDES[i], 5)),
        text([0.5 * (VIEW[0] + VIEW[2]), VIEW[1] + 4], `${speed.toFixed(1)} m/s`, "ink", "middle", 6.5),
      ],
      view: VIEW,
    };
  },
};
