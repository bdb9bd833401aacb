// A run of two steps on a device that holds and computes nothing. The strategy, the step and the
// counters are those of the real run, so what it shows is what a run takes, to the byte. Two steps
// are enough for files, too: each ends with a commit, so whatever the order of writes in it is, the
// second begins the last of the files that a value needs.

import { createDryGroup } from '@shardweave/collectives/dry';
import { gradNorm } from '@shardweave/nn';
import { createDryStore, type ShardStore } from '@shardweave/shard-store';
import {
  createDryBackend,
  Device,
  type DryModel,
  LimitError,
  type MemoryBytes,
} from '@shardweave/tensor-core';
import type { StoreBytes } from '../rank/events.js';
import { CommCounter, type CommCounts } from '../rank/step/comm-counter.js';
import { OpenedStores } from '../rank/step/opened-stores.js';
import { type PhaseBytes, PhaseMemory } from '../rank/step/phase-memory.js';
import { TrainingStep } from '../rank/step/training-step.js';
import { isNote } from '../rank/strategies/open-rest.js';
import { openRankGroups, openStrategy } from '../rank/strategies/open-strategy.js';
import type { RankGroups, Strategy, TaskStrategy } from '../rank/strategies/strategy.js';
import type { RunConfig } from '../run-config.js';
import { dryData, numSkipped } from './dry-data.js';
import type { KernelTally } from './kernel-times.js';
import { Work, type WorkCounts } from './work.js';

/** The most that a rank holds and does, over any number of steps. */
export interface DryRun extends StoreBytes {
  readonly rank: number;
  /** The most bytes on the device at once in all steps, each tag by itself. */
  readonly peakBytes: MemoryBytes;
  /** The bytes in each phase of a later step, when their total is highest. */
  readonly phases: readonly PhaseBytes[];
  /** The bytes between steps. */
  readonly restBytes: MemoryBytes;
  /**
   * The most bytes of the device's buffers, which are larger than what they hold; the start counts,
   * too.
   */
  readonly bufferBytes: number;
  /** Collectives, payload and work of the first step, and of each later one. */
  readonly firstStep: Counts;
  readonly laterStep: Counts;
  /** The kernels of a later step; empty where they are not asked for. */
  readonly kernels: KernelTally;
}

/**
 * A norm that every clipping clips, and that is finite in every dtype, so that the update takes the
 * most that it can take.
 */
const CLIPPED_NORM = 1e30;
/** The bytes of a gradient and AdamW's two moments, in f32. */
const STATE_BYTES = 12;

export interface DryRunOptions {
  readonly rank: number;
  /** The device, open or not. */
  readonly model: DryModel;
  /** Whether its kernels are listed, to be timed. Default false. */
  readonly isTimed?: boolean;
  /**
   * Limits for callers that only ask whether the run fits: a run that exceeds them ends early, with
   * a LimitError.
   */
  readonly limits?: { readonly deviceBytes: number; readonly hostBytes: number };
}

/** The figures that add up over a step. */
type Counts = CommCounts & WorkCounts;

/**
 * Runs two steps dry.
 * @throws {LimitError} for buffers beyond the device's, and for a run beyond `limits`
 * @throws {OffloadBudgetError} for a --device-budget that is too small
 */
export async function dryRun(config: RunConfig, options: DryRunOptions): Promise<DryRun> {
  const { rank, model, limits, isTimed = false } = options;
  const work = new Work({ isTallied: isTimed });
  const device = new Device(createDryBackend(model, work), { seed: config.seed });
  const gather = createDryGroup(config.ranks, { rank });
  const groups = await openRankGroups(gather);
  const stores = new OpenedStores();
  try {
    const strategy = await openStrategy({
      device,
      config: withoutValues(config),
      groups,
      openStore: stores.opening(async (directory) =>
        createDryStore({ isOnDisk: directory !== undefined }),
      ),
    });
    requireState(config, strategy, limits);
    await strategy.initialize();
    if (hasValues(config)) {
      await writeAgain([...stores.onHost, ...stores.onDisk]);
    }
    const steps = new Steps(config, { options, device, strategy, groups, stores, work });
    const result = await steps.run();
    strategy.optimizer.dispose();
    await strategy.dispose();
    return result;
  } finally {
    device.dispose();
  }
}

interface DryParts {
  readonly options: DryRunOptions;
  readonly device: Device;
  readonly strategy: TaskStrategy;
  readonly groups: RankGroups;
  readonly stores: OpenedStores;
  readonly work: Work;
}

/** The steps of a dry run, and what they count. */
class Steps {
  readonly #config: RunConfig;
  readonly #parts: DryParts;
  readonly #counter: CommCounter;
  readonly #memory: PhaseMemory;
  /** The counts at the beginning of each micro-step. */
  readonly #marks: Counts[] = [];
  readonly #tallies: KernelTally[] = [];

  constructor(config: RunConfig, parts: DryParts) {
    this.#config = config;
    this.#parts = parts;
    this.#counter = new CommCounter(parts.groups);
    this.#memory = new PhaseMemory(parts.device.ledger);
  }

  async run(): Promise<DryRun> {
    const { options, device, strategy, groups, stores } = this.#parts;
    const { rank, limits } = options;
    const config = this.#config;
    const step = new TrainingStep({
      config,
      rank,
      device,
      strategy,
      gradNorm: async (module) => {
        await gradNorm(module);
        return CLIPPED_NORM;
      },
      data: dryData(config, {
        onMicroStep: (place) => {
          this.#marks[place] = this.#counts();
          this.#tallies[place] = this.#parts.work.tally();
        },
      }),
      group: groups.gather,
      onPhase: (phase) => {
        this.#memory.enter(phase);
        requireBytes(device.pool.peakInUseBytes, limits, 'device');
      },
    });
    const first = await this.#countsOf(() => step.run(0, config.lr));
    this.#memory.take();
    const before = this.#parts.work.tally();
    const later = await this.#countsOf(() => step.run(1, config.lr));
    const phases = this.#memory.take();
    return {
      rank,
      peakBytes: this.#memory.peak(),
      phases,
      restBytes: device.ledger.live(),
      bufferBytes: device.pool.peakInUseBytes,
      ...stores.bytes(),
      firstStep: first,
      laterStep: later,
      kernels: this.#kernelsSince(before),
    };
  }

  /** What a step adds to the counts, including the micro-steps that are not run. */
  async #countsOf(run: () => Promise<unknown>): Promise<Counts> {
    const before = this.#counts();
    await run();
    const ran = sum(this.#counts(), before, -1);
    const [, second, third] = this.#marks;
    const skipped = numSkipped(this.#config);
    return skipped === 0 ? ran : sum(ran, sum(third!, second!, -1), skipped);
  }

  /** The calls since `before`, including those of micro-steps that are not run. */
  #kernelsSince(before: KernelTally): KernelTally {
    const skipped = numSkipped(this.#config);
    const [, second, third] = this.#tallies;
    const count = (tally: KernelTally | undefined, key: string) => tally?.get(key)?.count ?? 0;
    const found = [...this.#parts.work.tally()].map(([key, all]) => {
      const again = skipped === 0 ? 0 : skipped * (count(third, key) - count(second, key));
      return [key, { ...all, count: all.count - count(before, key) + again }] as const;
    });
    return new Map(found.filter(([, all]) => all.count > 0));
  }

  #counts(): Counts {
    return { ...this.#counter.counts(), ...this.#parts.work.counts() };
  }
}

/**
 * Ends the dry run before values are drawn, where the parameters, gradients and moments alone are
 * too much.
 */
function requireState(
  config: RunConfig,
  strategy: Strategy,
  limits: DryRunOptions['limits'],
): void {
  const { offloadDir, cpuOffload } = config;
  if (offloadDir !== undefined) {
    return;
  }
  const trained = strategy.optimizer.groups.flatMap(({ params }) => params);
  const elements = trained.reduce(
    (all, { size, piece }) => all + size / (piece?.numShards ?? 1),
    0,
  );
  const isOnHost = config.strategy === 'offload' || cpuOffload;
  const bytes = strategy.shardBytes + STATE_BYTES * elements;
  requireBytes(bytes, limits, isOnHost ? 'host' : 'device');
}

function requireBytes(
  bytes: number,
  limits: DryRunOptions['limits'],
  where: 'device' | 'host',
): void {
  const limitBytes = limits?.[`${where}Bytes`] ?? Number.POSITIVE_INFINITY;
  if (bytes > limitBytes) {
    throw new LimitError(`dry run: expected at most ${limitBytes} bytes, got ${bytes}.`, {
      requestedBytes: bytes,
      limitBytes,
    });
  }
}

function sum(a: Counts, b: Counts, times: number): Counts {
  return Object.fromEntries(
    Object.entries(a).map(([name, count]) => [name, count + times * b[name as keyof Counts]]),
  ) as unknown as Counts;
}

/** Writes the values of all stores again, as happens where files replace drawn values. */
async function writeAgain(stores: readonly ShardStore[]): Promise<void> {
  for (const store of stores) {
    for (const key of store.keys().filter((key) => !isNote(key))) {
      await store.write(key, new Uint8Array(store.byteLength(key)!));
    }
    await store.commit();
  }
}

/** The config without the files of its weights, which have the same size as drawn ones. */
function withoutValues(config: RunConfig): RunConfig {
  const { model, lora } = config;
  return {
    ...config,
    model: model.kind === 'directory' ? { ...model, hasWeights: false } : model,
    lora: lora && { ...lora, directory: undefined },
  };
}

/** Whether there are files with the first weights. */
function hasValues({ model, lora }: RunConfig): boolean {
  return (model.kind === 'directory' && model.hasWeights) || lora?.directory !== undefined;
}
