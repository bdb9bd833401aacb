// What a rank of an elastic job is given, and what the first rank of an epoch does for all.

import type { Epoch, Member } from '@shardweave/collectives/elastic';
import type { Device } from '@shardweave/tensor-core';
import type { RunData } from '../../data/dataset.js';
import type { OpenedOwnModel } from '../../own-model/open-own-model.js';
import type { PreparedRun } from '../../run-config.js';
import type { CommWatch } from '../comm-watch.js';
import type { EmitRankEvent } from '../events.js';
import type { RankWatch } from '../rank-watch.js';
import type { Asked } from '../step/answers.js';
import type { Replica } from '../strategies/ddp.js';
import type { RankGroups, TaskStrategy } from '../strategies/strategy.js';
import type { AfterStep, Reached } from '../train-loop.js';
import type { Place } from './place.js';

export interface ElasticRankOptions {
  /** A run with gradientGroups; how many ranks it has is not asked. */
  readonly config: PreparedRun;
  readonly member: Member;
  readonly device: Device;
  /** Whether the job is at work already, as far as this rank knows. */
  readonly isNewcomer: boolean;
  readonly emit: EmitRankEvent;
  /** Undefined on a rank that the process which leads the job does not hear. */
  readonly lead?: ElasticLead | undefined;
  /** What measures its steps for those who watch the run, and its number there. */
  readonly watched?: { readonly comm: CommWatch; readonly rank: number } | undefined;
  /** Called when an epoch begins, before its first step, with the bytes that the device holds. */
  readonly onEpoch?: ((epoch: Epoch, bytes: number) => void) | undefined;
  /** Called with each step that is done, of this epoch or, at its beginning, of the one before. */
  readonly onUpdated?: ((reached: Reached) => void) | undefined;
  /** Called when all steps are done. Collective; again where a rank is lost meanwhile. */
  readonly onEnd?: (ended: ElasticEnd) => Promise<void>;
  /** Makes the rank leave after the present step; the others go on without it, or stop too. */
  readonly wrapUp: AbortSignal;
  readonly signal: AbortSignal;
}

export interface ElasticEnd {
  readonly rank: number;
  readonly groups: RankGroups;
  readonly strategy: TaskStrategy;
  readonly watch: RankWatch;
  readonly reached: Reached;
  /** The loss of the weights on the rows that would follow; undefined where no target counts. */
  readonly loss: number | undefined;
}

/** What the first rank of an epoch does for the job, by itself, while the others wait or go on. */
export interface ElasticLead {
  /** Whether a wish to wrap up ends the job for all; else this rank alone leaves. */
  readonly endsJob: boolean;
  /** Where the job begins, and its state, such as that of a save; undefined for the first step. */
  begin(opened: Opened): Promise<Place | undefined>;
  /** Tells what the steps begin with. */
  record(): Promise<void>;
  /** Does what follows a step: a save. */
  afterStep(progress: AfterStep, at: LeadPlace): Promise<void>;
  /** Waits for the save that is being written. */
  settle(): Promise<void>;
  /** The job ends here, as too few are left of it: saves, where this rank is the one to do so. */
  keep(place: Place): Promise<void>;
  /** The job stops after this step, as it was asked to. */
  stop(reached: Reached): Promise<void>;
  /** All steps are done. */
  end(ended: ElasticEnd): Promise<void>;
}

export interface LeadPlace extends Pick<Place, 'scaler'> {
  /** Whether the job stops after the step. */
  readonly isStopping: boolean;
}

/** What a rank has for as long as it lives. */
export interface Opened {
  readonly data: RunData;
  readonly replica: Replica;
  readonly own: OpenedOwnModel | undefined;
  readonly proof: string;
  readonly numericClass: string;
  /** What the model is asked at each evaluation. */
  readonly asked: Asked | undefined;
}
