// Checks that a backward reaches what the ranks wait for: every trainable parameter, or, in a
// static graph, the same parameters that the first backward reached.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Tensor } from '@shardweave/tensor-core';
import { DdpUnusedParameterError } from '../errors.js';
import type { ActiveParameter } from './wrapped-parameters.js';

export interface ReachOptions {
  readonly isFindingUnused: boolean;
  readonly isStaticGraph: boolean;
}

export class Reach {
  readonly #group: ProcessGroup;
  readonly #options: ReachOptions;
  /** The parameters that this rank's backwards have to reach in a static graph. */
  #expected: ReadonlySet<Tensor> | undefined;

  constructor(group: ProcessGroup, options: ReachOptions) {
    this.#group = group;
    this.#options = options;
  }

  /**
   * Notes what this backward has reached, which in a static graph the next ones have to reach, too.
   */
  expect(reached: ReadonlySet<Tensor> | undefined): void {
    this.#expected = this.#options.isStaticGraph ? new Set(reached) : undefined;
  }

  /** Forgets what was reached, because other parameters are trained. */
  forget(): void {
    this.#expected = undefined;
  }

  /**
   * Checks what this backward has reached.
   * @param has whether a parameter has a gradient of earlier backwards that is to be reduced
   * @throws {DdpUnusedParameterError} for the parameters that the ranks would wait for in vain
   */
  require(
    active: readonly ActiveParameter[],
    reached: ReadonlySet<Tensor>,
    has: (tensor: Tensor) => boolean,
  ): void {
    const { isFindingUnused, isStaticGraph } = this.#options;
    let wrong: readonly ActiveParameter[] = [];
    let problem = '';
    if (isStaticGraph) {
      const expected = this.#expected;
      if (expected === undefined) {
        return;
      }
      wrong = active.filter(({ tensor }) => reached.has(tensor) !== expected.has(tensor));
      problem =
        'expected a backward of the same graph as the first (staticGraph), got another use of';
    } else if (!isFindingUnused) {
      wrong = active.filter(({ tensor }) => !reached.has(tensor) && !has(tensor));
      problem = 'expected a backward that reaches every trainable parameter, got none for';
    }
    if (wrong.length === 0) {
      return;
    }
    const paths = wrong.map(({ path }) => path);
    const advice = isStaticGraph
      ? 'Leave staticGraph out.'
      : 'Use them in forward, freeze them, or set findUnusedParameters: true.';
    const { rank, worldSize } = this.#group;
    const message = `rank ${rank}/${worldSize} ddp backward: ${problem} ${paths.join(', ')}. ${advice}`;
    throw new DdpUnusedParameterError(message, paths);
  }
}
