// What members of an elastic job and its coordinator tell each other. A member is known by its id:
// ids only grow, and nobody gets one again. Its rank is its place in an epoch's table, so the same
// member may be rank 2 in one epoch and rank 0 in the next one.
//   member       here                                     it has come, or comes again: welcome
//   member       edge                                     it has stopped, and stands at this step
//   coordinator  table                                    link to these
//   member       linked                                   it has links to these, as they come
//   coordinator  formed                                   go
//   member       lost                                     these it has found dead or cut off
//   coordinator  over                                     stop: there will be another epoch
//   coordinator  due                                      stop at the next edge: somebody waits
//   member       leave                                    it goes, now
//   coordinator  fenced, ended                            the job goes on without it; it is over

/** The most bytes of a note, in UTF-8. */
export const MAX_NOTE_BYTES = 1024;

/** The place at which a member's state stands, and its words to the others. */
export interface MemberEdge {
  /** The number of steps that its state has done. */
  readonly step: number;
  /** A text for the other members, of at most 1 KiB. */
  readonly note: string;
}

/** The epoch that a member was last part of, as it tells a coordinator that may not know it. */
export interface LastEpoch {
  readonly id: number;
  /** The newest epoch for which it was linked to all: it was formed, or may have been. */
  readonly epoch: number;
  /** The ids of that epoch's members, in the order of their ranks. */
  readonly members: readonly number[];
  /** Whether it is at work in that epoch, which was formed and is not over for it. */
  readonly isRunning: boolean;
}

export type Said<Address> =
  | {
      readonly type: 'here';
      readonly address: Address;
      /** The highest number of an epoch that it was ever told, though it was in none. */
      readonly told: number;
      readonly last?: LastEpoch | undefined;
    }
  /** `epoch` is the one in which it was at work last. */
  | ({ readonly type: 'edge'; readonly epoch: number; readonly hasState: boolean } & MemberEdge)
  | { readonly type: 'linked'; readonly epoch: number; readonly peers: readonly number[] }
  | { readonly type: 'lost'; readonly epoch: number; readonly members: readonly number[] }
  | { readonly type: 'leave' };

/** A member in a table; its rank is its place there. */
export interface TableMember<Address> extends MemberEdge {
  readonly id: number;
  readonly address: Address;
}

/** Who will be in an epoch. */
export interface Table<Address> {
  readonly epoch: number;
  readonly members: readonly TableMember<Address>[];
  /** The ids of the members of the epoch that was formed before; none in the first one. */
  readonly before: readonly number[];
  /**
   * The rank whose state the others take: of those who have the state of the job the one at the
   * highest step, and then of the lowest id.
   */
  readonly source: number;
}

export type Told<Address> =
  /** `epoch` is the highest number that this coordinator has given to an epoch. */
  | {
      readonly type: 'welcome';
      readonly id: number;
      readonly epoch: number;
      /** What the coordinator tells of the job; see `ServeElasticOptions`. */
      readonly about?: string | undefined;
    }
  | ({ readonly type: 'table' } & Table<Address>)
  | { readonly type: 'formed'; readonly epoch: number }
  | { readonly type: 'over'; readonly epoch: number; readonly lost: readonly number[] }
  | { readonly type: 'due'; readonly epoch: number }
  | { readonly type: 'fenced'; readonly reason: string }
  | { readonly type: 'ended'; readonly reason: string };
