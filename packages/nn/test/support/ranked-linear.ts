import { Linear } from '@shardweave/nn';
import { ALONE, HELD, type HeldBy, plainAtRest } from '@shardweave/nn/flat';
import type { Device } from '@shardweave/tensor-core';

/** A layer whose wrapper has ranks that tell each other their norms, and lists who asks it. */
export class RankedLinear extends Linear {
  readonly asked: string[] = [];

  constructor(device: Device) {
    super(device, { inFeatures: 3, outFeatures: 2, bias: false });
  }

  get [HELD](): HeldBy {
    const ranks = { ...ALONE, firstNorm: async (_: string, norm: number) => norm };
    return {
      name: 'ranked',
      group: undefined,
      together: () => ({
        whileAtRest: async (call, body) => {
          this.asked.push(call.operation);
          return body(
            plainAtRest(
              this.namedParameters().map(([n, t]) => [n, t]),
              call,
              ranks,
            ),
          );
        },
      }),
    };
  }
}
