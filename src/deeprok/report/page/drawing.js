// Shapes in an environment's own units, with y upwards, and what paints them. Colours are names of the page's theme.

export const line = (points, colour = "ink", width = 0.6) => ({ kind: "line", points, colour, width });
export const polygon = (points, colour = "ink") => ({ kind: "polygon", points, colour });
export const circle = (centre, radius, colour = "ink") => ({ kind: "circle", centre, radius, colour });
export const text = (at, words, colour = "ink", side = "middle", size = 4.5) => ({
  kind: "text", at, words, colour, side, size,
});

export const rectangle = (left, bottom, right, top) => [[left, bottom], [right, bottom], [right, top], [left, top]];

/** Points of a thing's own plan, whose front is at the right, turned towards a direction and moved. */
export const turned = (points, [cos, sin], [x, y]) =>
  points.map(([a, b]) => [x + cos * a - sin * b, y + sin * a + cos * b]);

/** An arc of points around a centre, from one angle to another. */
export function arc(centre, radius, from, to, count = 24) {
  return Array.from({ length: count + 1 }, (_, i) => {
    const angle = from + ((to - from) * i) / count;
    return [centre[0] + radius * Math.cos(angle), centre[1] + radius * Math.sin(angle)];
  });
}

/** A pen on an empty canvas of so many CSS pixels. */
export function clean(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** Paints a drawing on a canvas of so many CSS pixels. */
export function paint(canvas, drawing, width, height, theme) {
  const pen = clean(canvas, width, height);
  const [left, bottom, right, top] = drawing.view;
  const scale = Math.min(width / (right - left), height / (top - bottom));
  const place = ([x, y]) => [
    width / 2 + (x - (left + right) / 2) * scale,
    height / 2 - (y - (bottom + top) / 2) * scale,
  ];
  pen.lineJoin = pen.lineCap = "round";
  const path = (points) => {
    pen.beginPath();
    points.forEach((point, i) => (i ? pen.lineTo(...place(point)) : pen.moveTo(...place(point))));
  };
  const words = [];
  for (const shape of drawing.shapes) {
    const colour = theme[shape.colour] ?? shape.colour;
    if (shape.kind === "line") {
      path(shape.points);
      pen.strokeStyle = colour;
      pen.lineWidth = Math.max(1, (shape.width * height) / 100);
      pen.stroke();
    } else if (shape.kind === "text") {
      words.push(shape);
    } else {
      if (shape.kind === "polygon") path(shape.points);
      else {
        pen.beginPath();
        pen.arc(...place(shape.centre), Math.max(0.5, shape.radius * scale), 0, 2 * Math.PI);
      }
      pen.fillStyle = colour;
      pen.fill();
    }
  }
  for (const shape of words) {
    pen.font = `${Math.max(9, (shape.size * height) / 100)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.textAlign = { left: "left", middle: "center", right: "right" }[shape.side];
    pen.fillStyle = theme[shape.colour] ?? shape.colour;
    const [x, y] = place(shape.at);
    const length = pen.measureText(shape.words).width;
    const before = { left: 0, middle: length / 2, right: length }[shape.side];
    const half = Math.max(9, (shape.size * height) / 100) / 2;
    const [from, to] = [before + 2, width - length + before - 2];
    pen.fillText(shape.words, Math.min(Math.max(x, from), to), Math.min(Math.max(y, half + 1), height - half - 1));
  }
}
