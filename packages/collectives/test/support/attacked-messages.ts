// attacked-job.ts and its ranks exchange these messages.

export type RankOrder =
  | {
      readonly type: 'join';
      readonly rank: number;
      readonly worldSize: number;
      readonly secret: string;
      /** The rendezvous' port is 0 on rank 0, which hosts it. */
      readonly port: number;
      readonly encryption: 'auto' | 'always';
    }
  | { readonly type: 'costs' }
  | { readonly type: 'stop' };

export interface Costs {
  /** Processor time of all its threads: a busy machine changes it little. */
  readonly cpuMs: number;
  readonly longestTurnMs: number;
  readonly maxResidentBytes: number;
  readonly numRefused: number;
  /** The times at which it could not open a file, as a save does. */
  readonly numUnopened: number;
}

export type RankWord =
  | { readonly type: 'ready' }
  | { readonly type: 'listening'; readonly port: number }
  | ({ readonly type: 'formed' } & Costs)
  | { readonly type: 'unjoined'; readonly message: string }
  | ({ readonly type: 'costs'; readonly numSteps: number } & Costs)
  | { readonly type: 'ended' };
