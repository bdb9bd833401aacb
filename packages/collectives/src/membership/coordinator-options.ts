// What a coordinator is told of its job, and what it tells those who watch it.

/** Who may be in an elastic job, and how long things may take. Times are in milliseconds. */
export interface CoordinatorOptions {
  /** The fewest members with which the job goes on. */
  readonly min: number;
  /** The most members of an epoch. Whoever comes beyond that waits for a place. */
  readonly max: number;
  /**
   * 'new': the run had no coordinator before. 'again': it had one, and goes on with more than half
   * of the newest epoch. 'adopt': it goes on with whoever comes, because the operator knows that
   * the others are dead. Default: 'new'.
   */
  readonly begin?: 'new' | 'again' | 'adopt' | undefined;
  /**
   * The time for which a living member may compute on when its epoch is over. Default: ten minutes,
   * as long as a call may take.
   */
  readonly graceMs?: number | undefined;
  /**
   * The time in which a member that seems to be lost has to say something. One that may be the last
   * with the state of the job has `shortMs`, or `recoverMs` where its connection has ended.
   * Default: 1 s.
   */
  readonly suspectMs?: number | undefined;
  /** The time after the last new link after which a forming epoch is given up. Default: 5 s. */
  readonly linkMs?: number | undefined;
  /** The time for others who come at about the same time. Default: 1 s. */
  readonly settleMs?: number | undefined;
  /** The time below `min` after which the job ends. Default: 30 s. */
  readonly shortMs?: number | undefined;
  /** The time after which all have given up who lost their coordinator. Default: 12 s. */
  readonly recoverMs?: number | undefined;
  /** Called when the job has changed its phase or its members. */
  readonly onChange?: ((change: CoordinatorChange) => void) | undefined;
}

/** The state of a job, for who watches it. */
export interface CoordinatorStatus {
  readonly phase: 'recovering' | 'gathering' | 'forming' | 'running' | 'ended';
  /** The epoch that forms or runs, or did so last; 0 before the first one. */
  readonly epoch: number;
  /** The ids of its members. */
  readonly members: readonly number[];
  /**
   * The step at which it begins. A coordinator that was started again does not know that of the
   * epoch that it takes over.
   */
  readonly step: number | undefined;
  /** The ids of those who have come and are not in it. */
  readonly waiting: readonly number[];
}

/**
 * How somebody has gone: by its own word ('left'), because its connection has ended and it has not
 * come again ('lost'), or because the job goes on without it, though it may live ('fenced').
 */
export interface Departure {
  readonly id: number;
  readonly how: 'left' | 'lost' | 'fenced';
  readonly reason: string;
}

/** The state of a job, and who has come and gone since the last word of it. */
export interface CoordinatorChange extends CoordinatorStatus {
  /** The ids of those who have come. They are in the job from the next epoch on, or wait. */
  readonly came: readonly number[];
  readonly gone: readonly Departure[];
}
