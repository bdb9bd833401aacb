// The contents of the buffers, and the check of results. Values are small integers with a prime
// period, so that sums are exact in any order, and a part in a wrong place is noticed.

const PERIOD = 251;
/** How many elements are compared at a time, in whole periods. */
const TILE = PERIOD * 256;

/** Element i of the values that a rank contributes. */
export function givenBy(rank, i) {
  return ((i * 31 + rank * 17) % PERIOD) - 125;
}

/**
 * By how much a result may be wrong. With values up to 125, f16 keeps sums of 16 ranks exactly and
 * bf16 rounds the sum. int8 is wrong by one half for each rank's block, and by one half again for
 * the block of the sum.
 */
export function toleranceOf(wire, worldSize) {
  return wire === 'int8' || wire === 'bf16' ? worldSize : 0;
}

/** Element i of the sum over all ranks. */
export function sumOf(worldSize, i) {
  let sum = 0;
  for (let rank = 0; rank < worldSize; rank++) {
    sum += givenBy(rank, i);
  }
  return sum;
}

/** Fills bytes with the f32 values `value(i)`, which have a period of 251. */
export function fill(bytes, value) {
  const tile = tileOf(value);
  for (let at = 0; at < bytes.byteLength; at += tile.byteLength) {
    const length = Math.min(tile.byteLength, bytes.byteLength - at);
    bytes.set(tile.subarray(0, length), at);
  }
}

/** Throws where the bytes differ from the f32 values `value(i)` by more than the tolerance. */
export function expectValues(bytes, value, what, tolerance = 0) {
  if (tolerance > 0) {
    expectNear(bytes, value, what, tolerance);
    return;
  }
  const tile = tileOf(value);
  for (let at = 0; at < bytes.byteLength; at += tile.byteLength) {
    const length = Math.min(tile.byteLength, bytes.byteLength - at);
    if (Buffer.compare(bytes.subarray(at, at + length), tile.subarray(0, length)) === 0) {
      continue;
    }
    throw new Error(`wrong result: ${what}, ${firstDifference(bytes, tile, at, length)}`);
  }
}

function expectNear(bytes, value, what, tolerance) {
  const got = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  for (let i = 0; i < got.length; i++) {
    if (!(Math.abs(got[i] - value(i % PERIOD)) <= tolerance)) {
      throw new Error(`wrong result: ${what}, element ${i}: expected ${value(i)}, got ${got[i]}`);
    }
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
