// One rank from start to end: device, data, model, steps, and what is left of them.

import { join } from 'node:path';
import { type ProcessGroup, withDelay } from '@shardweave/collectives';
import { stateDict as fsdpStateDict } from '@shardweave/fsdp';
import { Gpt2, stateDict, streamStateDict } from '@shardweave/nn';
import { lazyStateDict } from '@shardweave/offload';
import { type Backend, Device, Trace } from '@shardweave/tensor-core';
import { type Dataset, loadDataset } from '../data/dataset.js';
import { loadTokenizer, type Tokenizer } from '../data/tokenizer.js';
import { type ModelState, writeModel } from '../model/model-directory.js';
import { RUN_FILES } from '../output/run-directory.js';
import type { RunConfig } from '../run-config.js';
import { CommCounter } from './comm-counter.js';
import type { DeviceHost } from './device-host.js';
import type { EmitRankEvent } from './events.js';
import { loadModel } from './load-model.js';
import { sampleText } from './sample-text.js';
import { readShards, writeShards } from './shard-files.js';
import { trainLoop } from './train-loop.js';
import { COMPUTE_DTYPES, type ShardGroups, type TrainingModel } from './training-model.js';
import { TrainingStep } from './training-step.js';

/** A run that is over in moments is no run to make faster. */
const LEAST_STEPS_TO_MEASURE = 50;

export interface RankOptions {
  readonly config: RunConfig;
  readonly rank: number;
  /** Of all ranks; also where there is only one. The rank closes it. */
  readonly world: ProcessGroup;
  readonly host: DeviceHost;
  readonly emit: EmitRankEvent;
  /** Ends the rank with its reason as soon as what it waits for has been called off. */
  readonly signal: AbortSignal;
}

/** Trains. An error here reaches the other ranks through their groups. */
export async function runRank(options: RankOptions): Promise<void> {
  const { world, signal } = options;
  const abort = () => world.abort('the run was stopped');
  signal.addEventListener('abort', abort, { once: true });
  try {
    signal.throwIfAborted();
    await runToEnd(options);
    await world.close();
  } catch (error) {
    world.abort(error instanceof Error ? error.message : String(error));
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

async function runToEnd(options: RankOptions): Promise<void> {
  const { config, rank, host, emit } = options;
  const backend = await host.open(config.devices[rank] === 'webgpu' ? 'webgpu' : 'cpu', {
    threads: config.threads,
    dtype: COMPUTE_DTYPES[config.precision],
  });
  const trace = config.traceFile === undefined ? undefined : new Trace({ rank });
  if (trace !== undefined) {
    backend.trace((event) => trace.add(event));
  }
  const device = new Device(backend, {
    seed: config.seed,
    ...(trace === undefined ? {} : { trace }),
  });
  const tokenizer = await loadTokenizer(config.tokenizer);
  const data = await loadDataset(config, tokenizer);
  const groups = await openGroups(options, trace);
  const model = await loadModel(device, config, groups);
  const state = await train({ ...options, backend, device, data, model, groups });
  model.optimizer.dispose();
  // What rests off the device is read from there while results are left; the others' is on the host.
  if (model.offload === undefined) {
    await model.dispose();
  }
  if (rank === 0) {
    await leaveResults(options, { device, model, state, tokenizer });
  }
  if (model.offload !== undefined) {
    await model.dispose();
  }
  device.dispose();
  if (rank === 0 && config.steps >= LEAST_STEPS_TO_MEASURE) {
    await host.measureProducts(COMPUTE_DTYPES[config.precision]);
  }
  if (trace !== undefined) {
    emitTrace(emit, trace);
  }
}

async function openGroups(options: RankOptions, trace: Trace | undefined): Promise<ShardGroups> {
  const { config, world } = options;
  const gather = config.injectDelayMs > 0 ? withDelay(world, config.injectDelayMs) : world;
  if (trace !== undefined) {
    gather.onTrace = ({ name, startMs, endMs, bytes, seq, tag }) => {
      const args = { bytes, seq, ...(tag === undefined ? {} : { unit: tag }) };
      trace.add({ name, track: 'collectives', startMs, endMs, args });
    };
  }
  const reduce = gather.worldSize === 1 ? gather : await gather.split(0);
  return { gather, reduce };
}

interface TrainOptions extends RankOptions {
  readonly backend: Backend;
  readonly device: Device;
  readonly data: Dataset;
  readonly model: TrainingModel;
  readonly groups: ShardGroups;
}

/** All steps, and then the whole model for rank 0, on the host or at rest; every rank takes part. */
async function train(options: TrainOptions): Promise<ModelState> {
  const { config, rank, emit, signal, backend, device, data, model, groups } = options;
  const { kind, description } = backend.info;
  const { params, shardBytes } = model;
  const { tokenCount } = data;
  emit({
    type: 'ready',
    ready: { rank, device: kind, description, params, shardBytes, tokenCount },
  });
  await (model.fsdp ?? model.ddp)?.initialize();
  await readShards(config, model);
  device.ledger.resetPeak();
  const counter = new CommCounter([...new Set([groups.gather, groups.reduce])]);
  const step = new TrainingStep({ config, rank, device, model, data, group: groups.gather });
  let sentBefore = 0;
  await trainLoop({
    config,
    signal,
    runner: {
      runStep: (s, lr) => step.run(s, lr),
      resources: () => {
        const { bytesSent } = counter.counts();
        const wireBytes = bytesSent - sentBefore;
        sentBefore = bytesSent;
        return { peakBytes: device.ledger.peak().total, wireBytes };
      },
    },
    onStep: (metrics, resources) => {
      if (rank === 0) {
        emit({ type: 'step', metrics, resources });
      }
    },
  });
  const peakBytes = device.ledger.peak();
  emit({ type: 'report', report: { rank, device: kind, peakBytes, ...counter.counts() } });
  await writeShards(config, model);
  const { module, fsdp, offload } = model;
  if (offload !== undefined) {
    return lazyStateDict(offload);
  }
  return fsdp === undefined
    ? await stateDict(module)
    : await fsdpStateDict(fsdp, { stateDictOnRank0Only: true });
}

interface Made {
  readonly device: Device;
  readonly model: TrainingModel;
  readonly state: ModelState;
  readonly tokenizer: Tokenizer;
}

/** Writes the model and shows what it has learnt. */
async function leaveResults({ config, emit }: RankOptions, made: Made): Promise<void> {
  const { device, model, state, tokenizer } = made;
  if (config.outDir !== undefined) {
    await writeModel(join(config.outDir, RUN_FILES.model), config.gpt2, state);
  }
  if (config.isQuiet) {
    return;
  }
  // A model that fits no device as a whole makes the text where it rests, the others' plain copy.
  const whole = model.offload ?? new Gpt2(device, config.gpt2);
  if (model.offload === undefined) {
    await streamStateDict(whole, state);
  }
  const sample = await sampleText(device, whole.eval(), { config, tokenizer });
  if (model.offload === undefined) {
    whole.dispose();
  }
  emit({ type: 'sample', ...sample });
}

/** Each process has a clock of its own; the epoch is common to all. */
function emitTrace(emit: EmitRankEvent, trace: Trace): void {
  const { timeOrigin } = performance;
  const events = trace.events.map((event) => ({
    ...event,
    startMs: event.startMs + timeOrigin,
    endMs: event.endMs + timeOrigin,
  }));
  emit({ type: 'trace', rank: trace.rank, events });
}
