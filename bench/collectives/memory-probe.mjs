// Memory outside the JavaScript heap while a call is repeated: what stays after a collection, and
// the peak between. The first third warms up.

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

/** Bytes after what is free has been freed: buffers go with the turn after their collection. */
async function settled() {
  for (let i = 0; i < 3; i++) {
    collect();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return process.memoryUsage().external;
}
