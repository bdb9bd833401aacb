// What the buffers hold, and whether the results are right. Values are small integers of a prime
// period, so sums are exact in any order, and a part that lands in a wrong place is noticed.

const PERIOD = 251;
/** Elements compared at a time, whole periods. */
const TILE = PERIOD * 256;

/** Element i of what a rank gives. */
export function givenBy(rank, i) {
  return ((i * 31 + rank * 17) % PERIOD) - 125;
}

/** Element i of the sum over ranks. */
export function sumOf(worldSize, i) {
  let sum = 0;
  for (let rank = 0; rank < worldSize; rank++) sum += givenBy(rank, i);
  return sum;
}

/** Fills bytes with f32 values of period 251: `value(i)`. */
export function fill(bytes, value) {
  const tile = tileOf(value);
  for (let at = 0; at < bytes.byteLength; at += tile.byteLength) {
    const length = Math.min(tile.byteLength, bytes.byteLength - at);
    bytes.set(tile.subarray(0, length), at);
  }
}

/** Throws where bytes are not `value(i)`. */
export function expectValues(bytes, value, what) {
  const tile = tileOf(value);
  for (let at = 0; at < bytes.byteLength; at += tile.byteLength) {
    const length = Math.min(tile.byteLength, bytes.byteLength - at);
    if (Buffer.compare(bytes.subarray(at, at + length), tile.subarray(0, length)) === 0) continue;
    throw new Error(`wrong result: ${what}, ${firstDifference(bytes, tile, at, length)}`);
  }
}

function tileOf(value) {
  return new Uint8Array(Float32Array.from({ length: TILE }, (_, i) => value(i)).buffer);
}

function firstDifference(bytes, tile, at, length) {
  const [got, expected] = [bytes.slice(at, at + length), tile.slice(0, length)].map(
    (part) => new Float32Array(part.buffer),
  );
  const i = got.findIndex((x, j) => !Object.is(x, expected[j]));
  return `element ${at / 4 + i}: expected ${expected[i]}, got ${got[i]}`;
}
