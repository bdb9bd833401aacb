// Twenty sizes of a disk, from almost nothing to enough for everything. A run on each leaves its
// model, or says with paths and bytes where it is or why it is nowhere. So does a command of
// several processes or threads whose disk fills up while it trains, when Ctrl-C ends its wait.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { expectKept, type Kept, twelveSteps } from './support/expect-kept.js';
import { runCli } from './support/run-cli.js';
import { NO_MOUNT, openSmallDisk } from './support/small-disk.js';
import { tinyFlags } from './support/tiny-run.js';

const SIZES = Array.from({ length: 20 }, (_, i) => 4096 * Math.round(1 + (i / 19) ** 2 * 99));

const root = newFolder();
const workingDirectory = process.cwd();
const tiny = tinyFlags(root);
beforeAll(async () => {
  process.chdir(root); // What is written elsewhere is so written here.
  await runCli([...twelveSteps(tiny, join(root, 'whole')), '--quiet']);
});
afterAll(() => {
  process.chdir(workingDirectory);
});

describe('a run with saves leaves its model, or says why not, with paths and bytes', () => {
  const all: Kept[] = [];

  it.for(SIZES)(
    'a disk of %s bytes keeps the model, or the run says why not',
    { timeout: 60_000 },
    async (size, context) => {
      using disk = openSmallDisk(size) ?? context.skip(NO_MOUNT);
      const model = readFileSync(join(root, 'whole/model/model.safetensors'));
      all.push(await expectKept(disk, `${tiny} --keep 3`, model));
    },
  );

  it('each of three ways is taken', (context) => {
    context.skip(all.length === 0, NO_MOUNT);
    expect(all).toHaveLength(SIZES.length);
    expect(new Set(all)).toEqual(new Set(['refused', 'elsewhere', 'under --out']));
  });
});

describe('a command that waits for room', () => {
  it.for([
    ['ws', '--save-every 100'],
    ['ws', ''],
    ['shm', ''],
    ['memory', '--save-every 100'],
  ])(
    'a run over %s %s writes elsewhere at Ctrl-C',
    { timeout: 120_000 },
    async ([transport, more], context) => {
      using disk = openSmallDisk(600 * 1024) ?? context.skip(NO_MOUNT);
      const script = await buildCommand();
      const flags =
        `${tiny} --ranks 2 --steps 40 --log-every 1 --transport ${transport} ${more}`.trim();
      const out = join(disk.path, 'run');
      const child = spawn(process.execPath, [script, 'train', ...flags.split(' '), '--out', out], {
        cwd: root,
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      let said = '';
      const read = (chunk: Buffer) => {
        const before = said;
        said += chunk.toString();
        const has = (text: string) => said.includes(text) && !before.includes(text);
        if (has('step 20/')) {
          disk.fill(0);
        }
        if (has('Make room: the run waits')) {
          child.kill('SIGINT');
        }
      };
      child.stdout.on('data', read);
      child.stderr.on('data', read);
      const [code] = await once(child, 'close');
      expect([code, said]).toEqual([
        1,
        expect.stringMatching(/^error: .* It is whole in \S+ instead/m),
      ]);
      const place = / It is whole in (\S+) instead/.exec(said)![1]!;
      expect(existsSync(join(place, 'config.json'))).toBe(true);
      expect(existsSync(join(out, 'model'))).toBe(false);
      rmSync(place, { recursive: true });
    },
  );
});
