// Every attack on a job that forms (in the clear, over TLS, with few open files, with more ranks)
// and on one that trains. The figures are printed as a table, beside those of a job left alone.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bundleAttackedRank } from './support/attacked-job.js';
import { ATTACKS } from './support/attacks.js';
import { expectBearable, formUnder, stepUnder } from './support/form-under.js';

let rank: Awaited<ReturnType<typeof bundleAttackedRank>>;

beforeAll(async () => {
  rank = await bundleAttackedRank();
});

afterAll(() => rank.remove());

describe.each([
  ['in the clear', {}],
  ['over TLS', { encryption: 'always' }],
  ['with 256 open files', { openFiles: 256 }],
] as const)('a job that forms %s', (_, options) => {
  it.each(Object.keys(ATTACKS))('a job forms under %s', { timeout: 60_000 }, async (name) => {
    const formed = await formUnder(name, ATTACKS[name]!, rank.program, options);
    expectBearable(formed);
    expect(formed.numUnopened).toBe(0);
  });
});

describe('a job that forms', () => {
  it.each([
    ['with 64 open files, under', 'idle connections, 120 at once', { openFiles: 64 }],
    ['of 8 ranks, under', 'a flood of connections, 2,000 a second', { numRanks: 8 }],
  ])('%s %s', { timeout: 60_000 }, async (_, name, options) => {
    const formed = await formUnder(name, ATTACKS[name]!, rank.program, options);
    expectBearable(formed);
    expect(formed.numUnopened).toBe(0);
  });
});

describe('a job that trains', () => {
  it.each(Object.keys(ATTACKS))('a job trains under %s', { timeout: 60_000 }, async (name) => {
    const stepped = await stepUnder(name, ATTACKS[name]!, rank.program);
    expectBearable(stepped);
    expect(stepped.numUnopened).toBe(0);
    expect(stepped.numRefused).toBe(0); // Nobody has even come to a rank.
  });
});
