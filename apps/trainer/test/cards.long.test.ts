// Runs of the built command on two real drivers beside each other, which stand for two cards, and
// one whose device is lost in the middle.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { ROOT } from './support/run-flags.js';
import { tinyFlags } from './support/tiny-run.js';
import { SWIFTSHADER, whyNotTwoAdapters } from './support/webgpu-adapter.js';

/** A driver that has compiled nothing yet needs a quarter of a second for each pipeline. */
vi.setConfig({ testTimeout: 400_000 });

const HOOK = fileURLToPath(new URL('support/lose-device.mjs', import.meta.url));
const reason = await whyNotTwoAdapters();

const root = newFolder();
let script: string;
beforeAll(async () => {
  script = await buildCommand();
});

const commandOf = (line: string) => {
  const flags = `${tinyFlags(root)} ${line}`.replace('--device cpu ', '').split(' ');
  return [process.execPath, script, 'train', ...flags];
};

const train = (line: string, env: NodeJS.ProcessEnv = {}) => finish(commandOf(line), env);

/** Runs a program to its end, with both drivers. */
async function finish([program, ...args]: readonly string[], env: NodeJS.ProcessEnv) {
  const child = spawn(program!, args, {
    env: { ...process.env, VK_ADD_DRIVER_FILES: SWIFTSHADER, NO_COLOR: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [out, err] = [child.stdout, child.stderr].map((stream) => {
    const text = { all: '' };
    stream.on('data', (chunk: Buffer) => {
      text.all += chunk.toString();
    });
    return text;
  });
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, out: out!.all, err: err!.all };
}

const summaryOf = (out: string) => JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8'));

describe.skipIf(reason !== undefined)(`two adapters${reason ? ` (${reason})` : ''}`, () => {
  it.each(['memory', 'shm', 'ws'])(
    'two adapters over %s take a rank each, and are named in the header and in the record',
    async (transport) => {
      const out = join(root, `two-${transport}`);
      const line = `--ranks 2 --steps 2 --device webgpu:llvmpipe,webgpu:swiftshader --transport ${transport}`;
      const run = await train(`${line} --out ${out}`);
      expect(run).toMatchObject({ code: 0, err: expect.not.stringContaining('share') });
      expect(run.out).toMatch(/^device +rank 0: webgpu \(llvmpipe.*\)$/m);
      expect(run.out).toMatch(/^device +rank 1: webgpu \(swiftshader.*\)$/m);
      expect(summaryOf(out)).toMatchObject({
        device: expect.stringMatching(/webgpu \(llvmpipe.*\), webgpu \(swiftshader/),
        ranks: [
          { device: 'webgpu', description: expect.stringContaining('llvmpipe') },
          { device: 'webgpu', description: expect.stringContaining('SwiftShader') },
        ],
      });
    },
  );

  it.each(['memory', 'ws'])('two ranks of one over %s are warned', async (transport) => {
    const out = join(root, `one-${transport}`);
    const line = `--ranks 2 --steps 1 --device webgpu:swift --transport ${transport} --out ${out}`;
    const { code, err } = await train(line);
    expect(code).toBe(0);
    expect(err).toMatch(/^warning: Ranks 0, 1 share one adapter, swiftshader/m);
    expect(readFileSync(join(out, 'events.jsonl'), 'utf8')).toContain('Ranks 0, 1 share one');
  });
});

const LAYER = '/usr/share/vulkan/implicit_layer.d/VkLayer_MESA_device_select.json';
const hasMpirun = spawnSync('mpirun', ['--version']).error === undefined;
const noEnvironment =
  reason ??
  (hasMpirun ? undefined : 'no mpirun was found') ??
  (existsSync(LAYER) ? undefined : "no layer of Mesa's that selects devices");

it.skipIf(noEnvironment !== undefined)(
  `ranks that name no adapter have those that the environment of each process shows${noEnvironment ? ` (${noEnvironment})` : ''}`,
  async () => {
    const out = join(root, 'shown');
    const command = commandOf(`--steps 2 --device webgpu --transport mpi --out ${out}`);
    const one = (shown: string) => ['-np', '1', '-x', `MESA_VK_DEVICE_SELECT=${shown}`, ...command];
    const job = ['mpirun', ...one('10005:0!'), ':', ...one('1ae0:c0de!')];
    const run = await finish(job, {
      ...{ OMPI_MCA_rmaps_base_oversubscribe: '1', OMPI_MCA_hwloc_base_binding_policy: 'none' },
      ...{ OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1' },
      // koffi is a dependency of a package in which the bundle does not lie.
      NODE_PATH: `${ROOT}packages/collectives/node_modules`,
    });
    expect(run).toMatchObject({ code: 0, err: expect.not.stringContaining('share') });
    expect(run.out).toMatch(/^device +rank 0: webgpu \(llvmpipe.*\)$/m);
    expect(run.out).toMatch(/^device +rank 1: webgpu \(swiftshader.*\)$/m);
    const events = readFileSync(join(out, 'events.jsonl'), 'utf8');
    expect(events.match(/MESA_VK_DEVICE_SELECT=[^" ]*/g)?.sort()).toEqual([
      'MESA_VK_DEVICE_SELECT=10005:0!',
      'MESA_VK_DEVICE_SELECT=1ae0:c0de!',
    ]);
  },
);

describe.skipIf(reason !== undefined)(
  `a device that is lost${reason ? ` (${reason})` : ''}`,
  () => {
    const SENTENCE =
      /rank [01] of 2 failed after step [2-4]: webgpu: the device of swiftshader.* was lost \(destroyed\): [^.]+\. Its memory is gone with it, so that a run goes on from its newest save/;
    // Ranks in one process share its adapter, so that both lose it.
    const loseAt = (name: string, transport = 'ws') => ({
      NODE_OPTIONS: `--import ${HOOK}`,
      ...(transport === 'ws' ? { LOSE_RANK: '1' } : {}),
      ...{ LOSE_STEP: '2', LOSE_MARK: join(root, `${name}.lost`) },
      LOSE_METRICS: join(root, name, 'metrics.jsonl'),
    });
    const lineOf = (name: string, transport = 'ws') =>
      `--ranks 2 --transport ${transport} --steps 5 --save-every 1 --device webgpu:swift --out ${join(root, name)}`;

    it('ends the run with its name, the reason and the line that goes on', async () => {
      const { code, out, err } = await train(lineOf('ends'), loseAt('ends'));
      expect(existsSync(join(root, 'ends.lost'))).toBe(true);
      expect(code).toBe(1);
      expect(err).toMatch(SENTENCE);
      expect(out).toMatch(/^Go on from its save of step [1-4] with: .* --resume auto$/m);
    });

    it.each(['ws', 'memory', 'shm'])(
      'a run over %s is started again from the newest save, and ends as if nothing had happened',
      async (transport) => {
        const [again, whole] = [`again-${transport}`, `whole-${transport}`];
        const line = `${lineOf(again, transport)} --max-restarts 1`;
        const { code, out } = await train(line, loseAt(again, transport));
        expect(existsSync(join(root, `${again}.lost`))).toBe(true);
        expect(code).toBe(0);
        expect(out).toMatch(SENTENCE);
        expect(out).toMatch(/Starting again from the last save \(restart 1 of 1\)\.$/m);
        expect(out).toMatch(/^Going on from .*saves\/step-00000[1-4]/m);
        expect((await train(lineOf(whole, transport))).code).toBe(0);
        const lossesOf = (name: string) =>
          readFileSync(join(root, name, 'metrics.jsonl'), 'utf8')
            .trimEnd()
            .split('\n')
            .map((text) => (JSON.parse(text) as { loss: number }).loss);
        expect(lossesOf(again)).toEqual(lossesOf(whole));
        expect(lossesOf(whole)).toHaveLength(5);
      },
    );
  },
);
