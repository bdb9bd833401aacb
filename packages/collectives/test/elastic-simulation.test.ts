import type { ReduceHook } from '@shardweave/collectives';
import { createSimulationResources } from '@shardweave/collectives/testing';
import { expect, it } from 'vitest';
import { ElasticSimulation, type SimulationFigures } from './support/elastic-simulation.js';

const FIRST = Number(process.env.SHARDWEAVE_FIRST_SEED ?? 1);
const NUM = Number(process.env.SHARDWEAVE_ELASTIC_SIMULATIONS ?? 20);

it('goes', { timeout: 600_000 }, async () => {
  const { reducer } = await createSimulationResources();
  const reduce: ReduceHook = (parts, output, options) => reducer.reduce(parts, output, options);
  const figures: SimulationFigures = {
    numEpochs: 0,
    numSteps: 0,
    numEnded: 0,
    numEvents: 0,
    kinds: new Map(),
  };
  const t0 = performance.now();
  const problems: string[] = [];
  for (let seed = FIRST; seed < FIRST + NUM; seed++) {
    const e0 = figures.numEvents;
    const m0 = performance.now();
    const s = new ElasticSimulation(seed, reduce, figures);
    try {
      await s.run();
      if (process.env.EACH)
        process.stdout.write(
          `${seed}:${figures.numEvents - e0}:${(performance.now() - m0).toFixed(0)} `,
        );
    } catch (error) {
      problems.push(`seed ${seed}: ${(error as Error).message}`);
      if (problems.length === 1)
        process.stdout.write(
          `seed ${seed}: ${(error as Error).stack}\n${s.trace.slice(-100).join('\n')}\n`,
        );
    }
  }
  process.stdout.write(
    `${JSON.stringify(figures)} ${JSON.stringify([...figures.kinds])} ${performance.now() - t0} ms\n${problems.slice(0, 30).join('\n')}\n${problems.length} problems`,
  );
  expect(problems).toEqual([]);
});
