export interface Chip {
  readonly processors: number;
  readonly peakBytes: number;
}

export interface Guess {
  readonly product: number;
  readonly attention: number;
  readonly clockGhz: number;
}

export const CHIPS: Readonly<Record<'H100' | 'H200', Chip>>;
export const GUESSES: Readonly<Record<'likely' | 'best' | 'worst', Guess>>;
export function secondsOf(
  dispatch: {
    readonly kernel: string;
    readonly workgroups: number;
    readonly invocations: number;
    readonly flops?: number;
    readonly bytesRead: number;
    readonly bytesWritten: number;
  },
  chip: Chip,
  guess: Guess,
): number;
