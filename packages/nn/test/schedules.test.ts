import { readFileSync } from 'node:fs';
import { learningRateAt, NnConfigError } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { expectClose } from './support/support.js';

const DATA = new URL('../../../tooling/reference/data/tiny/expected.json', import.meta.url);

describe('learningRateAt', () => {
  it('warms up to the full rate, which the last step of warm-up has', () => {
    for (const kind of ['constant', 'cosine', 'linear'] as const) {
      const options = { kind, lr: 0.8, warmupSteps: 4, totalSteps: 12 };
      const rates = [0, 1, 2, 3, 4].map((step) => learningRateAt(step, options));
      expectClose(rates, [0.2, 0.4, 0.6, 0.8, 0.8], 1e-12);
    }
  });

  it('stays, or falls by a cosine or a line to 0 at the end', () => {
    const at = (kind: 'constant' | 'cosine' | 'linear') =>
      [2, 4, 6, 8, 10, 99].map((step) =>
        learningRateAt(step, { kind, lr: 2, warmupSteps: 2, totalSteps: 10 }),
      );
    const root = Math.SQRT1_2;
    expectClose(at('constant'), [2, 2, 2, 2, 2, 2], 1e-12);
    expectClose(at('cosine'), [2, 1 + root, 1, 1 - root, 0, 0], 1e-12);
    expectClose(at('linear'), [2, 1.5, 1, 0.5, 0, 0], 1e-12);
  });

  it('is stable between warm-up and a decay of so many steps, which a longer run has later', () => {
    const at = (totalSteps: number) =>
      [0, 1, 2, 5, 6, 7, 8, 9, 10].map((step) =>
        learningRateAt(step, { kind: 'wsd', lr: 2, warmupSteps: 2, totalSteps, decaySteps: 4 }),
      );
    expectClose(at(10), [1, 2, 2, 2, 2, 1.5, 1, 0.5, 0], 1e-12);
    expectClose(at(14), [1, 2, 2, 2, 2, 2, 2, 2, 2], 1e-12);
  });

  it('gives the rates of the reference run', () => {
    const { cases } = JSON.parse(readFileSync(DATA, 'utf8'));
    const { lrs } = cases.find(({ name }: { name: string }) => name === 'cosine-fp32');
    const options = { kind: 'cosine', lr: 3e-3, warmupSteps: 4, totalSteps: 20 } as const;
    const rates = lrs.map((_: number, step: number) => learningRateAt(step, options));
    expectClose(rates, lrs, 1e-8);
  });

  it('refuses to guess the length of a run', () => {
    expect(() => learningRateAt(0, { kind: 'cosine', lr: 1 })).toThrow(NnConfigError);
    expect(() => learningRateAt(0, { kind: 'constant', lr: 1, warmupSteps: 1.5 })).toThrow('whole');
    const bare = { kind: 'wsd', lr: 1, totalSteps: 9 } as const;
    expect(() => learningRateAt(0, bare)).toThrow('decaySteps');
    expect(learningRateAt(5, { kind: 'constant', lr: 1 })).toBe(1);
  });
});
