// One operation of one rank: its buffers, the call, and the result that it must have.
import { expectValues, fill, givenBy, sumOf, toleranceOf } from './pattern.mjs';

/**
 * @param engine see rank.mjs
 * @param {{ operation: string, whole: Uint8Array, beside: Uint8Array }} cell
 * @returns {{ fill(): void, run(): Promise<void>, expect(): void }}
 */
export function callOf(engine, { operation, whole, beside }) {
  const { rank, worldSize } = engine;
  const own = (i) => givenBy(rank, i);
  const previous = (rank + worldSize - 1) % worldSize;
  const sum = (i) => sumOf(worldSize, i);
  const tolerance = toleranceOf(engine.wire, worldSize);
  const partElements = beside.byteLength / 4;
  switch (operation) {
    case 'all-gather':
      return {
        fill: () => {
          fill(beside, own);
          whole.fill(255);
        },
        run: () => engine.allGather(beside, whole),
        expect: () => {
          for (let r = 0; r < worldSize; r++) {
            const part = whole.subarray(r * beside.byteLength, (r + 1) * beside.byteLength);
            expectValues(part, (i) => givenBy(r, i), `part ${r} of all-gather`, tolerance);
          }
        },
      };
    case 'reduce-scatter':
      return {
        fill: () => {
          fill(whole, own);
          beside.fill(255);
        },
        run: () => engine.reduceScatter(whole, beside),
        expect: () =>
          expectValues(beside, (i) => sum(i + rank * partElements), operation, tolerance),
      };
    case 'all-reduce':
      return {
        isInPlace: true,
        fill: () => fill(whole, own),
        run: () => engine.allReduce(whole),
        expect: () => expectValues(whole, sum, operation, tolerance),
      };
    case 'broadcast':
      return {
        fill: () => (rank === 0 ? fill(whole, own) : whole.fill(255)),
        run: () => engine.broadcast(whole),
        expect: () => expectValues(whole, (i) => givenBy(0, i), operation),
      };
    case 'send-recv':
      return {
        fill: () => {
          fill(beside, own);
          whole.fill(255);
        },
        run: () => engine.sendRecv(beside, whole),
        expect: () => expectValues(whole, (i) => givenBy(previous, i), operation),
      };
    default:
      throw new Error(`no operation ${operation}`);
  }
}
