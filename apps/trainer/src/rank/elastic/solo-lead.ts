// What the first rank of an epoch does for an elastic job: it begins at a save, tells what the
// steps begin with, saves, and leaves the model. It does so alone, on a replica that is the same on
// all ranks, so that no other rank has to be there for it, and none is waited for.

import { createMemoryGroup } from '@shardweave/collectives';
import type { Backend, Device } from '@shardweave/tensor-core';
import { dealtRows } from '../../data/dealt-rows.js';
import { findSaves, savesOf } from '../../files/save-directory.js';
import type { Resumed } from '../../saves/resume-run.js';
import type { RunSaves, StepProgress } from '../../saves/run-saves.js';
import { beginRecord } from '../begin-record.js';
import { leaveModelOf } from '../leave-results.js';
import { openObjective } from '../objectives/open-objective.js';
import { type OpenedRank, openResuming, type RankOptions } from '../open-rank.js';
import { OpenedStores } from '../step/opened-stores.js';
import { hashOf } from '../strategies/model-saves.js';
import type { AfterStep, Reached } from '../train-loop.js';
import { fromOf, loadFirst, openSaves, resume, takeTrained, tellReady } from '../train-rank.js';
import type { ElasticEnd, ElasticLead, LeadPlace, Opened } from './elastic-options.js';
import type { Place } from './place.js';

export interface SoloLeadOptions extends Omit<RankOptions, 'world' | 'rank' | 'wrapUp'> {
  readonly backend: Backend;
  readonly device: Device;
  /** The number of this rank among those that the command has started. */
  readonly localRank: number;
  /** Whether it begins with the job; others copy the state of those who are there. */
  readonly isFirst: boolean;
  /** See RankCall. */
  readonly keeping?: AbortSignal | undefined;
}

export class SoloLead implements ElasticLead {
  /** The command that has started this rank ends with the job. */
  readonly endsJob = true;
  readonly #options: SoloLeadOptions;
  /** Aborted where the rank stops after a step, which it saves. */
  readonly #stopping = new AbortController();
  #run: OpenedRank | undefined;
  #numericClass = '';
  #resumed: Resumed | undefined;
  #saves: RunSaves | undefined;

  constructor(options: SoloLeadOptions) {
    this.#options = options;
  }

  async begin(opened: Opened): Promise<Place | undefined> {
    const run = await openAlone(this.#options, opened, this.#stopping.signal);
    this.#run = run;
    const { localRank, isFirst } = this.#options;
    const { config } = run.options;
    this.#numericClass = await tellReady(run, localRank);
    if (!isFirst) {
      return undefined;
    }
    if (config.resume !== undefined && localRank > 0) {
      return undefined; // it copies what the first one has found
    }
    const resumed = await resume(run, this.#numericClass);
    this.#resumed = resumed;
    if (resumed?.save === undefined) {
      await loadFirst(run);
      return undefined;
    }
    const from = fromOf(resumed, config)!;
    return { ...from, scaler: resumed.save.record.scaler, isTold: true };
  }

  async record(): Promise<void> {
    await beginRecord(this.#opened, { resumed: this.#resumed, numericClass: this.#numericClass });
  }

  async afterStep(
    { hash, ...progress }: AfterStep,
    { scaler, isStopping }: LeadPlace,
  ): Promise<void> {
    if (isStopping) {
      this.#stopping.abort();
    }
    await this.#save({ ...progress, scaler }, hash !== undefined);
  }

  async settle(): Promise<void> {
    await this.#saves?.settle();
  }

  async keep({ step, updates, last, scaler, best, validLoss }: Place): Promise<void> {
    const { config, keeping } = this.#options;
    const { out, hashEvery } = config;
    if (out === undefined || last === undefined || keeping?.aborted !== true) {
      return;
    }
    const saves = await findSaves(savesOf(out));
    if (saves.some((save) => save.step === step && 'record' in save)) {
      return;
    }
    this.#stopping.abort();
    const { loss } = last.metrics;
    const place = { step, updates, scaler, best, validLoss, loss, isLast: false };
    await this.#save(place, hashEvery !== undefined);
    await this.#saves?.last();
  }

  async #save(progress: Omit<StepProgress, 'hash'>, isHashed: boolean): Promise<void> {
    const saves = await this.#openSaves();
    const hash = async () => ({ hash: await hashOf(this.#opened.strategy) }); // others don't save
    await saves?.after({ ...progress, hash: isHashed ? hash : undefined });
  }

  async stop({ step }: Reached): Promise<void> {
    const { emit } = this.#opened.options;
    emit({ type: 'early', step, why: 'asked', save: await this.#saves?.last() });
  }

  async end({ reached, loss, watch }: ElasticEnd): Promise<void> {
    const run = this.#opened;
    const { emit } = run.options;
    const { early, step } = reached;
    if (early !== undefined && early !== 'asked') {
      emit({ type: 'early', step, why: early });
    }
    const saves = await this.#openSaves();
    saves?.prove();
    await saves?.settle();
    const ended = { reached, loss };
    const trained = await takeTrained(run, { resumed: this.#resumed, saves, watch, ended });
    await leaveModelOf(run, trained);
  }

  get #opened(): OpenedRank {
    return this.#run!;
  }

  /** Opens the saves when this rank is the first of an epoch, and keeps them from then on. */
  async #openSaves(): Promise<RunSaves | undefined> {
    this.#saves ??= await openSaves(this.#opened, {
      resumed: this.#resumed,
      numericClass: this.#numericClass,
    });
    return this.#saves;
  }
}

/** The rank as if it were the only one, on the model that it trains with the others. */
async function openAlone(
  { config: asked, backend, device, localRank, host, emit, signal }: SoloLeadOptions,
  { data, replica, own }: Opened,
  wrapUp: AbortSignal,
): Promise<OpenedRank> {
  const [world] = createMemoryGroup(1);
  const groups = { gather: world!, reduce: world! };
  const config = { ...asked, ranks: 1 };
  const { batch, gradientGroups } = config;
  const parts = { batch, gradientGroups: gradientGroups!, ranks: 1 };
  const { saved: module, optimizer, shardBytes } = replica;
  return {
    options: { config, rank: 0, localRank, world: world!, host, emit, wrapUp, signal },
    backend,
    device,
    data: { ...data, train: dealtRows(data.train, parts), valid: data.valid },
    groups,
    comm: undefined,
    resuming: await openResuming(config, groups, backend),
    strategy: {
      ...{ module, optimizer, shardBytes },
      initialize: async () => {},
      noSync: (body) => body(),
      step: (update) => optimizer.step(update),
      isSavedBeside: true,
      text: { model: module },
      dispose: async () => {},
      objective: openObjective({ device, module, config, groups, own }),
      onlyTrained: own === undefined,
    },
    stores: new OpenedStores(),
  };
}
