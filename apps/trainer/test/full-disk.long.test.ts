// Twenty sizes of a disk, from almost nothing to enough for everything. A run on each leaves its
// model, or says with paths and bytes where it is or why it is nowhere.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { expectKept, type Kept, twelveSteps } from './support/expect-kept.js';
import { runCli } from './support/run-cli.js';
import { NO_MOUNT, openSmallDisk } from './support/small-disk.js';
import { tinyFlags } from './support/tiny-run.js';

const SIZES = Array.from({ length: 20 }, (_, i) => 4096 * Math.round(1 + (i / 19) ** 2 * 99));

const root = mkdtempSync(join(tmpdir(), 'full-disk-'));
const workingDirectory = process.cwd();
const tiny = tinyFlags(root);
beforeAll(async () => {
  process.chdir(root); // What is written elsewhere is so written here.
  await runCli([...twelveSteps(tiny, join(root, 'whole')), '--quiet']);
});
afterAll(() => {
  process.chdir(workingDirectory);
  rmSync(root, { recursive: true });
});

describe('a run with saves leaves its model, or says why not, with paths and bytes', () => {
  const all: Kept[] = [];

  it.for(SIZES)('on a disk of %s bytes', { timeout: 60_000 }, async (size, context) => {
    using disk = openSmallDisk(size) ?? context.skip(NO_MOUNT);
    const model = readFileSync(join(root, 'whole/model/model.safetensors'));
    all.push(await expectKept(disk, tiny, model));
  });

  it('in each of three ways', (context) => {
    context.skip(all.length === 0, NO_MOUNT);
    expect(all).toHaveLength(SIZES.length);
    expect(new Set(all)).toEqual(new Set(['refused', 'elsewhere', 'under --out']));
  });
});
