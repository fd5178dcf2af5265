// A rocket that lands on its engine, as deeprok.environments.rocket.

import { circle, line, polygon, rectangle, text } from "./drawing.js";

const CEILING = 120;
const ALTITUDES = [5, 80];
const SPEEDS = [-2, 0];
const SOFT = 2;
const STEP_COST = 0.005;
const MARKS = [0, 20, 40, 60, 80, 100, 120];

export const rocket = {
  starts: 2,
  start: ([a, b]) => [
    ALTITUDES[0] + (ALTITUDES[1] - ALTITUDES[0]) * a,
    SPEEDS[0] + (SPEEDS[1] - SPEEDS[0]) * b,
  ],
  observe: ([altitude, speed]) => [altitude, altitude > 0 ? Math.sqrt(altitude) : 0, speed],

  step([altitude, speed], action, params) {
    const acceleration = (action === 1 ? params.thrust : 0) - params.gravity;
    const newSpeed = speed + params.time_step * acceleration;
    const newAltitude = altitude + params.time_step * 0.5 * (speed + newSpeed);
    const impact = Math.sqrt(Math.max(speed * speed - 2 * acceleration * altitude, 0));
    const landed = newAltitude <= 0 && impact <= SOFT;
    const flying = newAltitude > 0 && newAltitude < CEILING;
    const reward = landed ? 1 : flying ? -STEP_COST : -1;
    return { state: [newAltitude, newSpeed], reward, terminated: !flying };
  },

  pushed: ([altitude, speed], direction) => [altitude, speed - 4 * direction],

  draw(states) {
    const [altitude, speed] = states[states.length - 1];
    const foot = Math.max(altitude, 0);
    const burning = states.length > 1 && speed > states[states.length - 2][1];
    return {
      shapes: [
        polygon(rectangle(-90, -12, 90, 0), "pale"),
        line([[-18, 0], [18, 0]], "ink", 1),
        ...MARKS.map((mark) => line([[-64, mark], [-61, mark]], "grey")),
        ...MARKS.slice(1).map((mark) => text([-66, mark], `${mark} m`, "grey", "right", 4)),
        ...states.slice(0, -1).map(([before]) => circle([0, Math.max(before, 0)], 0.7, "grey")),
        ...(burning ? [polygon([[-2.2, foot + 1], [0, foot - 7], [2.2, foot + 1]], "orange")] : []),
        polygon([[-3, foot], [3, foot], [3, foot + 10], [0, foot + 15], [-3, foot + 10]], "blue"),
        polygon([[-5.5, foot], [-3, foot + 5], [-3, foot]], "ink"),
        polygon([[5.5, foot], [3, foot + 5], [3, foot]], "ink"),
        text([84, 112], `altitude ${foot.toFixed(1)} m`, "ink", "right", 5),
        text([84, 102], `speed ${speed.toFixed(1)} m/s`.replace("-", "−"), "ink", "right", 5),
      ],
      view: [-90, -12, 90, CEILING + 4],
    };
  },
};
