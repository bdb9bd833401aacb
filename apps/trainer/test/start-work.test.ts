// These tests check the work of a start before the first step, in counts that do not depend on
// timing. Each weight is drawn once, directly where it rests. It passes through the host only if it
// rests there or goes to other ranks.

import { createDryGroup } from '@shardweave/collectives/dry';
import { parameterCount } from '@shardweave/nn';
import { createDryStore } from '@shardweave/shard-store';
import { cpuInfo, createDryBackend, Device } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { resolveConfig } from '../src/config/resolve-config.js';
import { openRankGroups, openStrategy } from '../src/rank/strategies/open-strategy.js';
import { languageConfig } from '../src/task/text-config.js';
import { parseFlags } from './support/parse-flags.js';

/**
 * Returns how many elements the kernels of rank 0 write, by kernel, and how many bytes pass between
 * host and device, all before the first step. The numeric class, which a process computes once for
 * its backend whatever the model is, is not among them.
 */
async function startOf(flags: readonly string[]) {
  const config = await resolveConfig(parseFlags([...flags], () => {}));
  let written: Record<string, number> = {};
  let copiedBytes = 0;
  const backend = createDryBackend(
    { info: cpuInfo({ threads: 1 }) },
    {
      onKernel: (kernel, call) => {
        const size = 'out' in call ? call.out.size : 0;
        written[kernel] = (written[kernel] ?? 0) + size;
      },
      onCopy: (byteLength) => {
        copiedBytes += byteLength;
      },
    },
  );
  const device = new Device(backend, { seed: config.seed });
  await device.numericClass();
  written = {};
  copiedBytes = 0;
  const groups = await openRankGroups(createDryGroup(config.ranks));
  const openStore = async () => createDryStore();
  const strategy = await openStrategy({ device, config, groups, openStore });
  await strategy.initialize();
  strategy.optimizer.dispose();
  await strategy.dispose();
  device.dispose();
  return { written, copiedBytes, elements: parameterCount(languageConfig(config.modelConfig)) };
}

/** The most bytes that ranks exchange to describe their models before they begin. */
const WORDS_BYTES = 1024;

it.each([
  { flags: '--strategy single', ofRank: 1, onHost: 0 },
  { flags: '--strategy single --precision bf16', ofRank: 1, onHost: 0 },
  { flags: '--strategy ddp --ranks 2', ofRank: 1, onHost: 1 },
  { flags: '--strategy ddp --ranks 2 --precision bf16', ofRank: 1, onHost: 1 },
  { flags: '--strategy fsdp --ranks 2', ofRank: 1 / 2, onHost: 0 },
  { flags: '--strategy offload', ofRank: 1, onHost: 1 },
  { flags: '--strategy fsdp --ranks 2 --cpu-offload', ofRank: 1 / 2, onHost: 1 / 2 },
])('$flags: draws each weight of GPT-2 124M once', async ({ flags, ofRank, onHost }) => {
  const start = await startOf(`--model gpt2 --device cpu ${flags}`.split(' '));
  const { random = 0, fill = 0, ...others } = start.written;
  // A rank's part of a unit is rounded up, and the last one ends with padding.
  expect(random + fill).toBeGreaterThan(0.999 * ofRank * start.elements);
  expect(random + fill).toBeLessThan(1.001 * ofRank * start.elements);
  expect(Object.values(others).reduce((sum, size) => sum + size, 0)).toBeLessThan(WORDS_BYTES);
  const most = 4 * 1.001 * onHost * start.elements + WORDS_BYTES;
  expect(start.copiedBytes).toBeLessThan(most);
});
