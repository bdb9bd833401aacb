// Two drivers that are installed beside each other stand for two cards: ranks open one each, and
// are told where they share one. cards.long.test.ts trains on them.

import { Writable } from 'node:stream';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { parse } from 'yaml';
import { resolveConfig } from '../src/config/resolve-config.js';
import { resolvedConfig } from '../src/config/resolved-config.js';
import { describeFailure, rootCause } from '../src/launch/rank-failure.js';
import { headerLines } from '../src/output/header.js';
import { RunMonitor } from '../src/output/run-monitor.js';
import type { RunRecord } from '../src/output/run-records.js';
import { sharedAdapters } from '../src/output/shared-adapters.js';
import { Terminal } from '../src/output/terminal.js';
import { DeviceHost } from '../src/rank/device-host.js';
import type { RankReady } from '../src/rank/events.js';
import { runEnd } from '../src/run-end.js';
import { parseFlags } from './support/parse-flags.js';
import { SWIFTSHADER, whyNotTwoAdapters } from './support/webgpu-adapter.js';

const reason = await whyNotTwoAdapters();

beforeAll(() => {
  // The Vulkan loader looks for drivers when an adapter is first requested.
  vi.stubEnv('VK_ADD_DRIVER_FILES', SWIFTSHADER);
});
afterAll(() => {
  vi.unstubAllEnvs();
});

function readyOn(rank: number, more: Partial<RankReady> = {}): RankReady {
  return {
    ...{ rank, device: 'webgpu', description: 'NVIDIA H100', isSoftware: false, host: 'a' },
    ...{ numericClass: '', params: 5, shardBytes: 4, valid: undefined },
    data: { tokens: 9, documents: 0, cut: 0, pieces: 0, rows: 1000 },
    ...more,
  };
}

const configOf = (line: string) => resolveConfig(parseFlags(line.split(' '), () => {}));

describe.skipIf(reason !== undefined)(`two adapters${reason ? ` (${reason})` : ''}`, () => {
  it('adapters in one process are one for each rank that asks for it, by name or by index', async () => {
    await using host = new DeviceHost();
    const open = (choice: `webgpu:${string}`, localRank = 0) =>
      host.open(choice, { threads: 1, localRank });
    const slow = await open('webgpu:swiftshader');
    const mesa = await open('webgpu:LLVMPIPE', 1);
    expect([slow, mesa].map(({ info }) => info.description)).toEqual([
      expect.stringContaining('SwiftShader'),
      expect.stringContaining('llvmpipe'),
    ]);
    expect(new Set([await open('webgpu:0'), await open('webgpu:1')])).toEqual(
      new Set([slow, mesa]),
    );
    const both = 'webgpu:e'; // a part of both names
    expect(await open(both, 0)).not.toBe(await open(both, 1));
  });

  it('are not needed by a rank that names none: two share the one that Dawn prefers', async () => {
    await using host = new DeviceHost();
    const open = (localRank: number) => host.open('webgpu', { threads: 1, localRank });
    expect(await open(0)).toBe(await open(1));
  });

  it('adapters that nobody has are refused as a flag that is wrong', async () => {
    await using host = new DeviceHost();
    await expect(host.open('webgpu:voodoo', { threads: 1 })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringMatching(
        /^--device webgpu:voodoo: expected .*which has 0: .*SwiftShader/,
      ),
    });
  });
});

it.skipIf(reason !== undefined)(
  'a device that is lost ends its rank by name, and the job may start again',
  async () => {
    const adapter = await openNodeGpu({ adapter: 'SwiftShader' }).requestAdapter();
    const device = await adapter!.requestDevice();
    const backend = await createWebGpuBackend({ device });
    device.destroy();
    const lost = await backend.sync().catch((error: unknown) => error);
    const failure = describeFailure(lost);
    const error = rootCause([{ rank: 1, step: 3, failure }], 2);
    const config = { steps: 9, patience: undefined };
    const end = runEnd({ config, early: undefined, misplaced: undefined, asked: undefined, error });
    expect(end).toMatchObject({
      ...{ why: 'rank-failed', mayRestart: true, exitCode: 1 },
      failure: expect.stringMatching(
        /^rank 1 of 2 failed after step 3: webgpu: the device of swiftshader.* was lost \(destroyed\): [^.]+\. Its memory is gone with it, so that a run goes on from its newest save \(--save-every\), by itself with --max-restarts\.$/,
      ),
    });
    await backend.dispose();
  },
);

it('config.yaml keeps the adapters that were asked for, and says what auto has found', async () => {
  const flags = parseFlags('--ranks 3 --device webgpu:1,auto,auto'.split(' '), () => {});
  const ready = (['webgpu', 'cpu', 'webgpu'] as const).map((device) => ({
    device,
    numericClass: `${device} kernels 1 for fused products, OpenBLAS 1 Core, bits 0`,
  }));
  const text = resolvedConfig(await resolveConfig(flags), ready);
  const found = { device: ['webgpu:1', 'cpu', 'webgpu'], products: 'auto' };
  expect(parse(text)).toMatchObject(found);
});

describe('two ranks on one adapter', () => {
  const TWO = '--ranks 2 --device webgpu';

  it('are warned where it is a card, by rank and name', async () => {
    const warned = sharedAdapters(await configOf(TWO), [readyOn(0), readyOn(1)]);
    expect(warned).toEqual([
      expect.stringMatching(/^Ranks 0, 1 share one adapter, NVIDIA H100: each has a part of its/),
    ]);
  });

  it.each<[string, string, Partial<RankReady>, number]>([
    ['of two hosts', TWO, { host: 'b' }, 0],
    ['of two names', TWO, { description: 'NVIDIA A10' }, 0],
    ['of processes that are shown other cards', TWO, { shown: 'DRI_PRIME=pci-0000_02_00_0!' }, 0],
    ['beside one on the cpu', '--ranks 2 --device webgpu,cpu', { device: 'cpu' }, 0],
    ['by its name', '--ranks 2 --device webgpu:h100', {}, 1],
  ])('ranks %s: %#', async (_, line, other, count) => {
    const warned = sharedAdapters(await configOf(line), [readyOn(0), readyOn(1, other)]);
    expect(warned).toHaveLength(count);
  });

  it('ranks that compute on the CPU are warned where they ask for it by name alone', async () => {
    const slow = { description: 'llvmpipe', isSoftware: true };
    const ready = [readyOn(0, slow), readyOn(1, slow)];
    expect(sharedAdapters(await configOf(TWO), ready)).toEqual([]);
    const named = await configOf('--ranks 2 --device webgpu:llvmpipe');
    expect(sharedAdapters(named, ready)).toHaveLength(1);
  });

  it('see it in the terminal and in the record, and two adapters in the header', async () => {
    const config = await configOf(`${TWO} --quiet`);
    let err = '';
    const sink = new Writable({
      write: (chunk, _encoding, done) => {
        err += String(chunk);
        done();
      },
    });
    const records: RunRecord[] = [];
    const terminal = new Terminal({ out: sink, err: sink, isQuiet: false, env: {}, steps: 1 });
    const listener = { onRecord: (record: RunRecord) => records.push(record) };
    const monitor = new RunMonitor(config, terminal, { listeners: [listener] });
    monitor.handle({ type: 'ready', ready: readyOn(0) });
    monitor.handle({ type: 'ready', ready: readyOn(1) });
    const text = expect.stringMatching(/^Ranks 0, 1 share one adapter, NVIDIA H100/);
    expect(records).toContainEqual({ type: 'warning', text });
    expect(err).toMatch(/^warning: Ranks 0, 1 share one adapter, NVIDIA H100/m);
    const two = headerLines(config, [readyOn(0), readyOn(1, { description: 'NVIDIA A10' })]);
    expect(two.filter((line) => line.startsWith('device'))).toEqual([
      'device  rank 0: webgpu (NVIDIA H100)',
      'device  rank 1: webgpu (NVIDIA A10)',
    ]);
  });
});
