// A rank whose state its device cannot hold is refused before anything is made or computed.

import { createMemoryGroup } from '@shardweave/collectives';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { UsageError } from '../src/errors.js';
import { parseFlags } from '../src/flags.js';
import { checkRoom } from '../src/rank/check-room.js';
import { openStrategy } from '../src/rank/strategies/open-strategy.js';
import { resolveConfig } from '../src/resolve-config.js';
import { runFlags } from './fixtures/run-flags.js';

/** 842 k parameters, whose state takes 12.7 MiB. */
const MICRO = '--device cpu --model micro';
const MEMORY_BYTES = 12 * 2 ** 20;

async function open(flags: string, rank: (device: Device) => void): Promise<void> {
  const config = await resolveConfig(parseFlags(`${MICRO} ${flags}`.split(' '), () => {}));
  const backend = await createCpuBackend({ threads: 0, memoryBytes: MEMORY_BYTES });
  const device = new Device(backend);
  const [gather] = createMemoryGroup(1);
  const groups = { gather: gather!, reduce: gather! };
  try {
    const strategy = await openStrategy({ device, config, groups });
    strategy.optimizer.dispose();
    await strategy.dispose();
  } finally {
    rank(device);
    await gather!.close();
    device.dispose();
    await backend.dispose();
  }
}

describe('state beyond the memory of a cpu device', () => {
  it.each(['--ranks 1', '--ranks 2 --strategy ddp'])('is refused: %s', async (flags) => {
    const refused = open(flags, (device) => {
      expect(device.ledger.peak().total).toBe(0);
      expect(device.backend.dispatches).toBe(0);
    });
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(/12\.0 MiB .* 12\.7 MiB .* fsdp over 2 ranks or more/);
  });

  it.each(['--ranks 1 --strategy offload'])(
    'is no matter where it rests elsewhere: %s',
    async (flags) => {
      await open(flags, (device) => expect(device.ledger.peak().total).toBeLessThan(MEMORY_BYTES));
    },
  );

  it('is a part of the whole in fsdp, and no matter on a GPU', async () => {
    const config = await resolveConfig(parseFlags(`${MICRO} --ranks 2`.split(' '), () => {}));
    const limits = { maxBufferBytes: MEMORY_BYTES, maxViewBytes: MEMORY_BYTES };
    const cpu = {
      kind: 'cpu',
      description: '',
      compiledFor: '',
      isSoftware: true,
      isHostMemory: true,
      limits,
    } as const;
    expect(() => checkRoom(config, cpu)).not.toThrow();
    expect(() => checkRoom({ ...config, ranks: 1 }, cpu)).toThrow(UsageError);
    expect(() => checkRoom({ ...config, ranks: 1 }, { ...cpu, kind: 'webgpu' })).not.toThrow();
  });

  it('is refused by the command', async () => {
    await expect(
      runFlags('--device cpu --model gpt2-large --tokenizer byte --ranks 1'.split(' ')),
    ).rejects.toThrow(/of one WebAssembly memory, got 11\.\d GiB/);
  });
});
