// Random numbers that depend on where they are used alone: on the seed, the episode and the step. So every pane has the
// same ones, whatever it does and in which order panes are played.

/** A generator of uniform numbers in [0, 1) with 53 bits (sfc32), seeded by some whole numbers. */
export function generator(...seeds) {
  let [a, b, c, d] = [0x9e3779b9, 0x243f6a88, 0xb7e15162, 1];
  const next = () => {
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return t >>> 0;
  };
  for (const seed of seeds) {
    a ^= seed | 0;
    for (let i = 0; i < 12; i++) next();
  }
  return () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
}

/** So many standard normal numbers (Box and Muller). */
export function normals(uniform, count) {
  return Array.from({ length: count }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
    return radius * Math.cos(2 * Math.PI * uniform());
  });
}
