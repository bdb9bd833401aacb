// What an instance is doing. Each call that begins or ends something moves it to another state, and
// is refused where it can't begin:
//
//   from                   by                   to
//   idle                   beginForward         forward, and back to idle
//   backwardPre or -Post   beginForward         forward, run again, and back to backwardPre
//   idle                   beginBackward        backwardPre
//   any                    noteContribution     backwardPost
//   idle                   beginSummon          summonFullParams, and back to idle
//   all but summoned       becomeIdle           idle

/** What an instance is doing. Public calls other than forward and backward need 'idle'. */
export type TrainingState =
  | 'idle'
  | 'forward'
  | 'backwardPre' // its full parameters are back, gradients not yet all in
  | 'backwardPost' // a gradient of its own has come
  | 'summonFullParams';

/** The states in which a forward or a backward may come to an instance. */
const OPEN: readonly TrainingState[] = ['idle', 'backwardPre', 'backwardPost'];

export class StateMachine {
  #state: TrainingState = 'idle';
  readonly #refusal: (operation: string, expected: string) => Error;

  /** @param refusal makes the error of a call that can't begin in the present state */
  constructor(refusal: (operation: string, expected: string) => Error) {
    this.#refusal = refusal;
  }

  get state(): TrainingState {
    return this.#state;
  }

  /** @throws {FsdpStateError} unless it is in one of the states */
  expect(operation: string, states: readonly TrainingState[]): void {
    if (!states.includes(this.#state)) {
      throw this.#refusal(operation, `state ${states.join(' or ')}`);
    }
  }

  /**
   * Begins a forward. The returned function ends it, where nothing else has: a forward that runs
   * again inside a backward has its parameters back then, and none of the gradients that follow.
   */
  beginForward(): () => void {
    this.expect('forward', OPEN);
    const after = this.#state === 'backwardPost' ? 'backwardPre' : this.#state;
    this.#state = 'forward';
    return () => {
      if (this.#state === 'forward') {
        this.#state = after;
      }
    };
  }

  /** Notes that a backward comes to the instance's output. */
  beginBackward(): void {
    this.expect('backward', OPEN);
    if (this.#state === 'idle') {
      this.#state = 'backwardPre';
    }
  }

  /** Notes a gradient of the instance's own parameters. */
  noteContribution(): void {
    this.#state = 'backwardPost';
  }

  /** Makes its parameters the caller's until the returned function is called. */
  beginSummon(): () => void {
    this.#state = 'summonFullParams';
    return () => {
      this.#state = 'idle';
    };
  }

  /** Ends a backward, or what has failed; parameters that are summoned stay so. */
  becomeIdle(): void {
    if (this.#state !== 'summonFullParams') {
      this.#state = 'idle';
    }
  }
}
