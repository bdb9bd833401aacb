// A run takes the tiles of a GPU's matrix products from the cache, and its record names them.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { fileTuningStore, openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterEach, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { RunMonitor } from '../src/output/run-monitor.js';
import { Terminal } from '../src/output/terminal.js';
import { DeviceHost } from '../src/rank/device-host.js';
import type { RankReady } from '../src/rank/events.js';
import { parseFlags } from './support/parse-flags.js';
import { whyNoWebGpu } from './support/webgpu-adapter.js';

const reason = await whyNoWebGpu();
const TABLE = { 'NN f32 f32 f32 huge': 'direct 4x4x8' };

afterEach(() => {
  vi.unstubAllEnvs();
});

it.skipIf(reason !== undefined)(
  `a GPU's products are made by what the cache holds for it${reason ? ` (${reason})` : ''}`,
  async () => {
    const folder = newFolder();
    vi.stubEnv('SHARDWEAVE_CACHE', folder);
    let key = '';
    const tuningStore = {
      read: async (asked: string) => {
        key = asked;
        return undefined;
      },
      write: async () => {},
    };
    await (await createWebGpuBackend({ gpu: openNodeGpu(), tuningStore })).dispose();
    await fileTuningStore(folder).write(key, TABLE);
    await using host = new DeviceHost();
    const backend = await host.open('webgpu', { threads: 1 });
    expect(await host.matmulChoices(backend)).toEqual(TABLE);
  },
);

it('the record of a run holds them', async () => {
  const out = join(newFolder(), 'run');
  const config = await resolveConfig(
    parseFlags(`--model nano --strategy single --out ${out}`.split(' '), () => {}),
  );
  const io = { out: process.stdout, err: process.stderr, isQuiet: true, env: {}, steps: 1 };
  const monitor = new RunMonitor(config, new Terminal(io));
  const ready: RankReady = {
    ...{ rank: 0, device: 'webgpu', description: '', numericClass: '', tiles: TABLE, params: 1 },
    ...{
      isSoftware: true,
      host: 'here',
      shardBytes: 4,
      data: { tokens: 9, documents: 0, cut: 0, pieces: 0, rows: 2 },
      valid: undefined,
    },
  };
  monitor.handle({ type: 'ready', ready });
  monitor.end({ kind: 'failed', reason: 'over' });
  const lines = readFileSync(join(out, 'events.jsonl'), 'utf8').trimEnd().split('\n');
  const told = lines.map((line) => JSON.parse(line)).find(({ type }) => type === 'ready');
  expect(told).toMatchObject({ rank: 0, tiles: TABLE });
});

it('a cpu device of a machine with many cores has the threads that one can have', async () => {
  // So many threads take ten seconds to start, so a stand-in tells what it was asked for.
  const createCpuBackend = vi.fn(async () => ({ dispose: async () => {} }));
  vi.doMock('@shardweave/tensor-core/cpu', () => ({ createCpuBackend }));
  await using host = new DeviceHost();
  await host.open('cpu', { threads: 65 });
  vi.doUnmock('@shardweave/tensor-core/cpu');
  const asked = { threads: 64, products: 'wasm', quantizeActivations: false };
  expect(createCpuBackend).toHaveBeenCalledExactlyOnceWith(asked);
});
