// A run on WebGPU that goes on has the tiles of its save, though other ones have been stored since.

import { join } from 'node:path';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { fileTuningStore, openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterEach, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { readSave } from '../src/files/save-directory.js';
import { lossesOf, runLine, tinyFlags } from './support/tiny-run.js';
import { whyNoWebGpu } from './support/webgpu-adapter.js';

const reason = await whyNoWebGpu();
/** A driver that has compiled nothing yet needs a quarter of a second for each pipeline. */
const COLD_MS = 480_000;
const [OWN, LATER] = ['direct 8x8x8', 'direct 4x4x8'].map((tile) => ({
  'NN f32 f32 f32 small': tile,
  'NT f32 f32 f32 small': tile,
}));

afterEach(() => {
  vi.unstubAllEnvs();
});

it.skipIf(reason !== undefined)(
  `a run that goes on takes the tiles of its save, and not those of the cache${reason ? ` (${reason})` : ''}`,
  { timeout: COLD_MS },
  async () => {
    const root = newFolder();
    vi.stubEnv('SHARDWEAVE_CACHE', join(root, 'cache'));
    const backend = await createWebGpuBackend({ gpu: openNodeGpu() });
    const { tuningKey } = backend;
    await backend.dispose();
    const store = fileTuningStore(join(root, 'cache'));
    const out = join(root, 'run');
    const tiny = tinyFlags(root).replace('--device cpu', '--device webgpu');
    const flags = `${tiny} --strategy ddp --ranks 2 --schedule constant --save-every 2 --out ${out}`;
    await store.write(tuningKey, OWN!);
    const first = await runLine(`${flags} --steps 2`);
    const saved = await readSave(join(out, 'saves/step-000002'));
    expect(saved).toMatchObject({ record: { tiles: { [tuningKey]: OWN } } });
    await store.write(tuningKey, LATER!);
    const second = await runLine(`${flags} --steps 4 --resume auto`);
    expect(second.ready.map(({ tiles }) => tiles)).toEqual([OWN, OWN]);
    expect(second.ready[0]!.numericClass).toBe(first.ready[0]!.numericClass);
    expect(second.resumed).toMatchObject({ step: 2 });
    expect(second.resumed!.notes.filter((note) => /digits/.test(note))).toEqual([]);
    await store.write(tuningKey, OWN!);
    const whole = await runLine(`${flags} --steps 4`.replace(out, `${out}-whole`));
    expect([...lossesOf(first), ...lossesOf(second)]).toEqual(lossesOf(whole));
  },
);
