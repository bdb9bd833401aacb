// One rank of bench/ddp.mjs. It takes turns between no communication, one all-reduce per parameter,
// and buckets. Rank 0 prints one line of JSON.

import '../relaxed-simd.mjs';
import { isMainThread, Worker, workerData } from 'node:worker_threads';
import { connectShm, createShmJob } from '@shardweave/collectives/shm';
import { connectWs } from '@shardweave/collectives/ws';
import { allReduceHook, DistributedDataParallel } from '@shardweave/ddp-buckets';
import { naiveAllReduce } from '@shardweave/ddp-buckets/apex';
import { Gpt2, Module } from '@shardweave/nn';
import { add, crossEntropy, Device, sum } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

const WARM_UP_STEPS = 3; // until buckets are learned and pools are full
const MODES = ['local', 'naive', 'bucketed'];

/**
 * The parameters of a GPT, each with a constant gradient, so that a step is nearly all
 * communication.
 */
class Shapes extends Module {
  constructor(device, gpt) {
    super(device);
    for (const [name, tensor] of gpt.namedParameters()) {
      this.parameter(name.replaceAll('.', '_'), device.zeros(tensor.shape));
    }
  }

  forward() {
    return [...this.ownParameters().values()]
      .map((tensor) => sum(tensor))
      .reduce((a, b) => add(a, b));
  }
}

/**
 * Holds back all buckets until every rank has its last one, so that nothing is computed while they
 * are reduced.
 */
class AloneHook {
  name = 'alone';
  isSerial = false;
  lastMs = 0;
  #gate = gate();
  #startMs = 0;

  async reduce(bucket) {
    const { promise, resolve } = this.#gate;
    if (bucket.isLast) {
      this.#gate = gate();
      await bucket.group.barrier();
      this.#startMs = performance.now();
      resolve();
    }
    await promise; // buckets go on in the order in which they came
    await allReduceHook.reduce(bucket);
    this.lastMs = performance.now() - this.#startMs;
  }
}

function gate() {
  let resolve;
  const promise = new Promise((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

const spec = isMainThread ? JSON.parse(process.argv[2]) : workerData.spec;
if (spec.transport === 'ws') {
  const { rank, worldSize, port, secret } = spec;
  await serve(await connectWs({ rank, worldSize, address: '127.0.0.1', port, secret }));
} else if (isMainThread) {
  for (const handle of createShmJob(spec.worldSize)) {
    const options = { workerData: { spec, handle }, transferList: handle.ports };
    new Worker(new URL(import.meta.url), options).on('error', (error) => {
      throw error;
    });
  }
} else {
  await serve(await connectShm(workerData.handle));
}

async function serve(group) {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const gpt = new Gpt2(device, spec.gpt, { seed: 1 });
  const module = spec.hasCompute ? gpt : new Shapes(device, gpt);
  const alone = spec.hasCompute ? undefined : new AloneHook();
  const model = new DistributedDataParallel(module, {
    processGroup: group,
    communicationHook: alone,
    firstBucketBytes: spec.firstBucketBytes,
    bucketCapBytes: spec.bucketCapBytes,
  });
  const times = Object.fromEntries(MODES.map((mode) => [mode, []]));
  for (let step = 0; step < WARM_UP_STEPS + spec.steps; step++) {
    for (const mode of MODES) {
      await group.barrier();
      const time = await measure({ device, model, group, mode, alone });
      if (step >= WARM_UP_STEPS) {
        times[mode].push(time);
      }
    }
  }
  if (group.rank === 0) {
    const bytes = 4 * model.parameters().reduce((total, { size }) => total + size, 0);
    const [numParameters, numBuckets] = [model.parameters().length, model.buckets.length];
    process.stdout.write(`${JSON.stringify({ bytes, numParameters, numBuckets, times })}\n`);
  }
  await group.close();
  await backend.dispose();
}

/** Runs forward and backward with the reduction, until the gradients are there. */
async function measure({ device, model, group, mode, alone }) {
  const startMs = performance.now();
  const run = () => device.scope(async () => (await lossOf(device, model)).backward());
  let communicationMs = 0;
  if (mode === 'bucketed') {
    await run();
  } else {
    await model.noSync(run);
  }
  if (mode === 'bucketed') {
    communicationMs = alone?.lastMs ?? model.timings.communicationMs;
  }
  if (mode === 'naive') {
    await device.synchronize();
    await group.barrier();
    const { allReduce } = group;
    group.allReduce = async (...args) => {
      const beginMs = performance.now();
      await allReduce.apply(group, args);
      communicationMs += performance.now() - beginMs;
    };
    await naiveAllReduce(model.parameters(), { processGroup: group });
    group.allReduce = allReduce;
  }
  await device.synchronize();
  const stepMs = performance.now() - startMs;
  model.zeroGrad();
  return { stepMs, communicationMs };
}

async function lossOf(device, model) {
  if (!spec.hasCompute) {
    return model.call();
  }
  const { rows, gpt } = spec;
  const seq = gpt.n_positions;
  const text = Int32Array.from({ length: rows * seq }, (_, i) => (i * 7) % gpt.vocab_size);
  const ids = device.tensor(text, [rows, seq]);
  return crossEntropy(await model.call(ids), device.tensor(text, [rows, seq]));
}
