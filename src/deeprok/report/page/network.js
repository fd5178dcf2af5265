// Networks and what they choose, in double precision.

const ACTIVATIONS = {
  tanh: Math.tanh,
  relu: (x) => (x > 0 ? x : 0),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  elu: (x) => (x > 0 ? x : Math.expm1(x)),
  silu: (x) => x / (1 + Math.exp(-x)),
};

/** Numbers of an array that was written as base64 of its little-endian bytes. */
export function decode(text, precision) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const size = precision === "float64" ? 8 : 4;
  const view = new DataView(bytes.buffer);
  const numbers = new Float64Array(bytes.length / size);
  for (let i = 0; i < numbers.length; i++) {
    numbers[i] = size === 8 ? view.getFloat64(8 * i, true) : view.getFloat32(4 * i, true);
  }
  return numbers;
}

/** Outputs of a perceptron: of each layer the weights [inputs, outputs] and then the bias lie in theta. */
export function outputs(network, theta, observation) {
  const activate = ACTIVATIONS[network.activation];
  let x = observation.map((value, i) => value * network.input_scale[i]);
  let at = 0;
  for (let layer = 1; layer < network.sizes.length; layer++) {
    const size = network.sizes[layer];
    const y = new Float64Array(size);
    for (const value of x) {
      for (let j = 0; j < size; j++) y[j] += value * theta[at + j];
      at += size;
    }
    for (let j = 0; j < size; j++) y[j] += theta[at + j];
    at += size;
    if (layer + 1 < network.sizes.length) for (let j = 0; j < size; j++) y[j] = activate(y[j]);
    else if (network.squashed) for (let j = 0; j < size; j++) y[j] = Math.tanh(y[j]);
    x = y;
  }
  return Array.from(x);
}

/** The first of the largest. */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** What an agent's weights are, decoded once; null where none are embedded. */
export function readWeights(agent) {
  if (!agent.network) return null;
  const mean = decode(agent.network.theta, agent.network.precision);
  const draws = [];
  if (agent.posterior) {
    const all = decode(agent.posterior.draws, agent.network.precision);
    for (let k = 0; k < agent.posterior.count; k++) draws.push(all.subarray(k * mean.length, (k + 1) * mean.length));
  }
  return { mean, draws };
}

/**
 * What an agent makes of an observation.
 *
 * `acting` is the mean weights ("mean"), one draw from the posterior ("draw", the episode says which) or the majority of
 * all draws ("vote"). `deviation` is the spread of Q over the draws, with the run's own correction; null without draws.
 */
export function decide(agent, weights, observation, acting, episode) {
  const { network, posterior } = agent;
  const values = outputs(network, weights.mean, observation);
  if (!weights.draws.length) return { choice: values, values, deviation: null };
  const each = weights.draws.map((theta) => outputs(network, theta, observation));
  const count = each.length;
  const deviation = values.map((_, a) => {
    const average = each.reduce((sum, q) => sum + q[a], 0) / count;
    const variance = each.reduce((sum, q) => sum + (q[a] - average) ** 2, 0) / (count - 1);
    return Math.hypot(posterior.factor * Math.sqrt(variance), posterior.floor);
  });
  const shifted = values.map((value) => value + posterior.shift);
  let choice = values;
  if (acting === "draw") choice = each[episode % count];
  if (acting === "vote") {
    choice = values.map(() => 0);
    for (const q of each) choice[argmax(q)] += 1;
  }
  return { choice, values: shifted, deviation };
}
