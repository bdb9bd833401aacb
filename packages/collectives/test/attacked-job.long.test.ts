// Every attack on a job that forms: in the clear, over TLS, and with few open files. The figures
// are printed as a table, beside those of a job that is left alone.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bundleAttackedRank } from './support/attacked-job.js';
import { ATTACKS } from './support/attacks.js';
import { formUnder } from './support/form-under.js';

let rank: Awaited<ReturnType<typeof bundleAttackedRank>>;

beforeAll(async () => {
  rank = await bundleAttackedRank();
});

afterAll(() => rank.remove());

describe.each([
  ['in the clear', {}],
  ['over TLS', { encryption: 'always' }],
  ['with 256 open files', { openFiles: 256 }],
] as const)('a job that forms %s', (kind, options) => {
  it.each(Object.keys(ATTACKS))('under %s', { timeout: 60_000 }, async (name) => {
    const formed = await formUnder(name, ATTACKS[name]!, rank.program, options);
    expect(formed.residentMiB - formed.calmMiB, kind).toBeLessThan(60);
    expect(formed.numUnopened).toBe(0);
  });
});
