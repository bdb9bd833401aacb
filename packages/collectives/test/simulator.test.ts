// Five hundred random programs run over simulated links. A failure prints its seed, which
// `simulate({ seed })` of @shardweave/collectives/testing repeats.

import {
  createSimulationResources,
  SimulationError,
  type SimulationFigures,
  type Step,
  simulate,
  simulateMany,
} from '@shardweave/collectives/testing';
import { describe, expect, it } from 'vitest';

const NUM_WITHOUT_FAULTS = 125;
const NUM_WITH_FAULTS = 375;

function report(what: string, figures: SimulationFigures, startMs: number): void {
  const { numRuns, numEvents, numResolved, numRejected, virtualMs, faults, failures } = figures;
  const kinds = Object.entries(faults).map(([kind, count]) => `, ${count} ${kind}`);
  process.stdout.write(
    `${numRuns} schedules ${what}: ${numResolved} calls resolved, ${numRejected} rejected, ` +
      `${numEvents} events, ${(virtualMs / 3.6e6).toFixed(1)} virtual hours in ` +
      `${((performance.now() - startMs) / 1000).toFixed(1)} s${kinds.join('')}\n`,
  );
  // The first problem tells most, since its message has the trace.
  expect(failures.map(({ seed, problems }) => [seed, problems[0]])).toEqual([]);
}

/** Ten times what the programs take on an idle machine, in milliseconds. */
const timeout = 240_000;

describe('collectives over simulated links', { timeout }, () => {
  it('are right bit for bit, in whatever order messages arrive', async () => {
    const startMs = performance.now();
    const figures = await simulateMany({
      firstSeed: 1,
      numSeeds: NUM_WITHOUT_FAULTS,
      faults: 'none',
    });
    report('without faults', figures, startMs);
    expect(figures.numRuns).toBe(NUM_WITHOUT_FAULTS);
    expect(figures.numRejected).toBe(0);
    expect(figures.numResolved).toBeGreaterThan(10 * NUM_WITHOUT_FAULTS);
  });

  it('never hang, never blame what did not happen, and never write to memory that was given back', async () => {
    const startMs = performance.now();
    const figures = await simulateMany({ firstSeed: 1, numSeeds: NUM_WITH_FAULTS });
    report('with faults', figures, startMs);
    expect(figures.numRuns).toBe(NUM_WITH_FAULTS);
    expect(figures.numRejected).toBeGreaterThan(NUM_WITH_FAULTS);
    expect(Object.keys(figures.faults).length).toBe(10);
  });
});

describe('ranks that disagree', () => {
  // Some finish their part, such as a leaf's of a gather, and leave before anybody can know.
  it.each([11_027, 33_852, 35_082, 39_133, 42_405, 46_812, 47_115, 54_183, 58_287])(
    'hear that they do, also where others have left behind that call: seed %i',
    async (seed) => {
      const { faults } = await simulate({ seed });
      expect(faults.map(({ kind }) => kind)).toContain('mismatch');
    },
  );
});

describe('a simulation', () => {
  it('finds sums in another order, says so with its seed and last events, and repeats', async () => {
    const { reducer, data } = await createSimulationResources();
    const reversed = {
      reduce: (...[parts, ...rest]: Parameters<typeof reducer.reduce>) =>
        reducer.reduce([...parts].reverse(), ...rest),
    };
    const sum = { kind: 'collective', group: 0, dtype: 'f32', op: 'sum', count: 63 } as const;
    const rest = { hasUnevenCounts: false, root: 0, isInPlace: false, variant: 0 } as const;
    const steps: readonly Step[] = [
      { kind: 'barrier', group: 0 },
      { ...sum, ...rest, operation: 'allReduce' },
      { ...sum, ...rest, operation: 'reduceScatter' },
    ];
    const program = { worldSize: 4, steps };
    const resources = { reducer: reversed, data };
    const errors: SimulationError[] = [];
    for (let seed = 1; seed <= 10; seed++) {
      for (let time = 0; time < 2; time++) {
        try {
          await simulate({ seed, program, faults: 'none', resources });
        } catch (error) {
          expect(error).toBeInstanceOf(SimulationError);
          errors.push(error as SimulationError);
        }
      }
    }
    expect(errors.length).toBe(20);
    for (let i = 0; i < errors.length; i += 2) {
      const { seed, message, trace } = errors[i]!;
      expect(message).toBe(errors[i + 1]!.message);
      expect(message).toMatch(/output: byte \d+: expected \d+, got \d+/);
      expect(message).toContain(`simulation with seed ${seed} (no fault)`);
      expect(trace.length).toBeGreaterThan(5);
    }
  });

  it('expects nobody to miss a rank that had left before it was killed', async () => {
    const { numRejected } = await simulate({ seed: 38_444 });
    expect(numRejected).toBe(0);
  });

  it('runs a given program and fault, and reports what happened', async () => {
    const steps = Array.from({ length: 6 }, () => ({ kind: 'barrier', group: 0 }) as const);
    const report = await simulate({
      seed: 5,
      program: { worldSize: 4, steps },
      faults: [{ kind: 'kill', rank: 2, step: 3, delayMs: 0 }],
    });
    expect(report).toMatchObject({ seed: 5, worldSize: 4, numSteps: 6 });
    expect(report.faults.map(({ kind }) => kind)).toEqual(['kill']);
    // Three ranks survive, and each was stopped in one of its last calls.
    expect(report.numRejected).toBeGreaterThanOrEqual(3);
    const clean = await simulate({ seed: 5, program: { worldSize: 4, steps }, faults: 'none' });
    expect(clean).toMatchObject({ numResolved: 24, numRejected: 0, faults: [] });
  });
});
