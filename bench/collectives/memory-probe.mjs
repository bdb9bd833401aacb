// Measures memory outside the JavaScript heap while a call is repeated: what is left after a
// collection, and the peak in between. The first third of the repetitions warms up.

const collect = () => globalThis.gc?.();
const MIB = 2 ** 20;

/** @returns {Promise<{ beforeMiB: number, afterMiB: number, peakMiB: number }>} of this process */
export async function measureMemory(repetitions, run, barrier) {
  const warmUp = Math.ceil(repetitions / 3);
  for (let i = 0; i < warmUp; i++) {
    await run();
  }
  await barrier();
  const before = await settled();
  let peak = before;
  for (let i = warmUp; i < repetitions; i++) {
    await run();
    peak = Math.max(peak, process.memoryUsage().external);
  }
  await barrier();
  const after = await settled();
  return { beforeMiB: before / MIB, afterMiB: after / MIB, peakMiB: peak / MIB };
}

/** The external bytes after a collection. Buffers are freed one turn after they are collected. */
async function settled() {
  for (let i = 0; i < 3; i++) {
    collect();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return process.memoryUsage().external;
}
