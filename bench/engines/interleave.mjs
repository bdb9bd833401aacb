// Times engines in turn, so that whatever else the machine does affects all of them.

import { timesOf } from '../figures/record.mjs';

/** A sample takes at least this long, so that a clock tick and one wake-up do not show. */
const MIN_SAMPLE_MS = 80;
const LEAST_ROUNDS = 3;

/**
 * Measures the times of one task. Each round times every engine once. An engine that fails or ends
 * has no times.
 *
 * @param {readonly object[]} engines made by openEngine
 * @param {object} task what an engine prepares
 * @param {{ rounds: number, mostMs?: number }} options an engine that has taken `mostMs` gets no
 * further round after its third
 */
export async function interleave(engines, task, { rounds, mostMs = Number.POSITIVE_INFINITY }) {
  const samples = new Map();
  const repetitions = new Map();
  const processor = new Map();
  for (const engine of engines) {
    try {
      await engine.ask({ prepare: task });
      const { ms } = await engine.ask({ repetitions: 1 });
      repetitions.set(engine, Math.max(1, Math.ceil(MIN_SAMPLE_MS / ms)));
      samples.set(engine, []);
      processor.set(engine, []);
    } catch (error) {
      console.error(`${engine.key} ${JSON.stringify(task)}: ${error.message}`);
    }
  }
  for (let round = 0; round < rounds; round++) {
    for (const [engine, list] of samples) {
      const spentMs = repetitions.get(engine) * list.reduce((sum, ms) => sum + ms, 0);
      if (round >= LEAST_ROUNDS && spentMs > mostMs) {
        continue;
      }
      try {
        const { ms, processorMs } = await engine.ask({ repetitions: repetitions.get(engine) });
        list.push(ms);
        processor.get(engine).push(processorMs);
      } catch (error) {
        console.error(`${engine.key} ${JSON.stringify(task)}: ${error.message}`);
        samples.delete(engine);
      }
    }
  }
  const times = Object.fromEntries(
    [...samples].map(([engine, list]) => {
      const processorMs = Math.min(...processor.get(engine));
      return [engine.key, { ...timesOf(list), processorMs }];
    }),
  );
  console.error(JSON.stringify({ ...task, config: undefined }), times);
  return { ...task, times };
}
