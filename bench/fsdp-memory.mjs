// What each rank of a sharded GPT holds, by tag and phase: the ledger of real training steps over 1
// to 8 ranks in one process, beside the formulas of docs/memory-model.md. It ends with code 1 where
// a byte differs. It needs the built packages.
// Usage: node bench/fsdp-memory.mjs [--ranks 1,2,4,8] [--report FILE]

import './relaxed-simd.mjs';
import { createMemoryGroup } from '../packages/collectives/dist/index.js';
import { FullyShardedDataParallel, shardLayout } from '../packages/fsdp/dist/index.js';
import { AdamW, Gpt2 } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device, mean } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { memoryBlock } from './figures/memory-block.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';

const ROWS = 2; // for each rank
const SHAPE = { vocab: 256, seq: 32, width: 64, layers: 4, heads: 4 };
const TAGS = ['parameter', 'optimizer', 'gathered', 'gradient', 'activation', 'staging'];
const PHASES = ['idle', 'afterForward', 'peak', 'afterStep'];
const PRECISIONS = [
  { name: 'f32', e: 4, options: {} },
  { name: 'bf16 over f32 masters', e: 2, options: { mixedPrecision: true, computeDType: 'bf16' } },
];

const flags = flagsOf({
  ranks: '1,2,4,8',
  report: undefined,
});
const worldSizes = flags.ranks.split(',').map(Number);
const record = await startRecord('bench/fsdp-memory.mjs');
const backend = await createCpuBackend({ threads: 1 });
const cells = [];
const differences = [];
for (const precision of PRECISIONS) {
  for (const isResharding of [true, false]) {
    for (const worldSize of worldSizes) {
      const perRank = await measure(worldSize, precision, isResharding);
      perRank.forEach((phases, rank) => {
        compare(phases, predict(worldSize, rank, precision.e, isResharding), {
          worldSize,
          rank,
          precision: precision.name,
          isResharding,
        });
      });
      cells.push({ precision: precision.name, isResharding, worldSize, phases: perRank[0] });
    }
  }
}
await backend.dispose();
await endRecord(record);
Object.assign(record, { shape: { ...SHAPE, rows: ROWS }, cells, differences });
const title = headOf('Memory of a sharded GPT', record);
publish(flags.report, `${title}\n\n${memoryBlock(record)}`, record);

// ---- measured ----------------------------------------------------------------------------------

/** The bytes by phase and tag of each rank. */
function measure(worldSize, precision, isResharding) {
  const groups = createMemoryGroup(worldSize);
  return Promise.all(
    groups.map(async (processGroup) => {
      const device = new Device(backend, { seed: 1 });
      const model = wrappedGpt(device, {
        processGroup,
        reshardAfterForward: isResharding,
        ...precision.options,
      });
      const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
      await step(model, optimizer); // the first step makes the optimizer's state
      const phases = { idle: device.ledger.live() };
      device.ledger.resetPeak();
      await step(model, optimizer, () => {
        phases.afterForward = device.ledger.live();
      });
      phases.peak = device.ledger.peak();
      phases.afterStep = device.ledger.live();
      optimizer.dispose();
      model.dispose();
      device.dispose();
      await processGroup.close();
      return phases;
    }),
  );
}

function wrappedGpt(device, options) {
  const { vocab, seq, width, layers, heads } = SHAPE;
  const gpt = new Gpt2(device, {
    vocab_size: vocab,
    n_positions: seq,
    n_embd: width,
    n_layer: layers,
    n_head: heads,
  });
  for (const name of [...gpt.children().keys()].slice(1, -1)) {
    gpt.replaceChild(name, new FullyShardedDataParallel(gpt.children().get(name), options));
  }
  return new FullyShardedDataParallel(gpt, options);
}

async function step(model, optimizer, afterForward = () => {}) {
  const { device } = model;
  const { vocab, seq } = SHAPE;
  const ids = Int32Array.from({ length: ROWS * seq }, (_, i) => (i * 7) % vocab);
  await device.scope(async () => {
    const [x, y] = [device.tensor(ids, [ROWS, seq]), device.tensor(ids, [ROWS, seq])];
    // The forward has a scope of its own, so that only the graph holds the logits.
    const loss = await device.scope(async () => mean(await model.call(x, { targets: y })));
    afterForward();
    await loss.backward();
    await optimizer.step();
    optimizer.zeroGrad();
  });
}

// ---- docs/memory-model.md ----------------------------------------------------------------------

function predict(W, rank, e, isResharding) {
  const { vocab: V, seq: T, width: C, layers: L } = SHAPE;
  const r = e; // reductions travel in the compute dtype
  const root = shardLayout([V * C, T * C, C, C], W);
  const blockSizes = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];
  const block = shardLayout(blockSizes, W);
  const [sRoot, sBlock] = [root.shardLength, block.shardLength];
  const S = sRoot + L * sBlock;
  const isOwned = (layout) => rank * layout.shardLength < layout.elementCount;
  const stepped = (isOwned(root) ? sRoot : 0) + (isOwned(block) ? L * sBlock : 0);
  const none = { parameter: 4 * S, optimizer: 8 * stepped, gradient: 0, staging: 0 };
  const idle = { ...none, gathered: 0, activation: 0 };
  const isGathering = W > 1 || e !== 4;
  const gathered = (resharded) => (isGathering ? e * (isResharding ? resharded : W * S) : 0);
  const activation = activations(e);
  const ofOne = r === 4 ? 4 * S : 4 * L * sBlock + r * sRoot + Math.max(r * sBlock, 4 * sRoot);
  const gradient = W === 1 ? ofOne : Math.max(r * W * (sRoot + sBlock), 4 * S);
  const staging = W === 1 ? 0 : Math.max(e, r) * Math.max(sRoot, sBlock);
  return {
    idle,
    afterForward: {
      ...none,
      gathered: gathered(W * sRoot),
      activation: activation.afterForward,
    },
    peak: {
      ...none,
      gathered: gathered(W * (sRoot + sBlock)),
      gradient,
      activation: activation.peak,
      staging,
    },
    afterStep: idle,
  };
}

function activations(e) {
  const { vocab: V, seq: T, width: C, layers: L, heads: H } = SHAPE;
  const n = ROWS * T;
  const attention = e * n * 6 * C + 8 * n * H + 8 * n;
  const block = attention + e * n * 10 * C + 8 * n;
  const head = e * n * 2 * C + 4 * n * V + 8 * n + 4 * n;
  const inputs = 8 * n + 4 + 4 * T;
  const running = inputs + 4; // and the gradient that backward starts from
  const below = running + (L - 1) * block;
  return {
    afterForward: inputs + L * block + head,
    peak: Math.max(
      running + L * block + head + 4 * n + 4 * n * V + e * n * C, // dWeight in place: e = r
      below + block + e * (5 * n * C + C),
      running + e * (n * C + V * C),
    ),
  };
}

function compare(phases, expected, cell) {
  for (const phase of PHASES) {
    for (const tag of TAGS) {
      if (phases[phase][tag] === expected[phase][tag]) {
        continue;
      }
      process.exitCode = 1;
      differences.push({ ...cell, phase, tag });
      console.error(
        `${JSON.stringify(cell)} ${phase} ${tag}: ${phases[phase][tag]} bytes, the formula gives ${expected[phase][tag]}`,
      );
    }
  }
}
