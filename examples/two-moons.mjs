// A classifier of points with rows of its own, trained by `shardweave train --model two-moons.mjs`.
const TRAINED = 400;
const VALID = 100;

/** A number between -1 and 1 that looks random, and is the same in each process. */
function noise(i) {
  const large = 43758.5453 * Math.sin(12.9898 * i);
  return 2 * (large - Math.floor(large)) - 1;
}

/** The i-th point: on one of two half circles that reach into each other, and a little off it. */
function point(i) {
  const label = i % 2;
  const angle = (Math.PI * (noise(i) + 1)) / 2;
  const [x, y] = [Math.cos(angle), Math.sin(angle)];
  const off = [0.15 * noise(i + 0.3), 0.15 * noise(i + 0.7)];
  return { label, at: label === 0 ? [x + off[0], y + off[1]] : [1 - x + off[0], 0.5 - y + off[1]] };
}

export function create({ device, init, nn, tensor, dtype }) {
  const linear = (name, inFeatures, outFeatures) =>
    new nn.Linear(device, { inFeatures, outFeatures, init: init.at(name) });
  const module = new nn.Sequential(device, [
    linear('0', 2, 32),
    new nn.Gelu(device),
    linear('2', 32, 32),
    new nn.Gelu(device),
    linear('4', 32, 2),
  ]);
  // Which rows a step takes is the trainer's choice; a batch is whatever `loss` wants.
  const rows = { count: TRAINED, batch: (numbers) => numbers.map(point) };
  const validRows = { count: VALID, batch: (numbers) => numbers.map((i) => point(TRAINED + i)) };
  async function loss(module, points) {
    const at = Float32Array.from(points.flatMap((point) => point.at));
    const x = tensor.cast(device.tensor(at, [points.length, 2]), dtype);
    const labels = device.tensor(
      Uint32Array.from(points, ({ label }) => label),
      [points.length],
    );
    return tensor.crossEntropy(await module.call(x), labels, { reduction: 'sum' });
  }
  return { module, loss, rows, validRows };
}
