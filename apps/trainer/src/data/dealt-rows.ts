// The groups of rows of a data set, dealt to as many ranks as there are now. The data is opened
// once, as if each group had a rank of its own.

import type { Dataset } from './dataset.js';
import { groupOf, numMicroSteps, type Parts } from './row-order.js';

/** @param data opened with as many ranks as groups */
export function dealtRows(
  data: Dataset,
  parts: Pick<Parts, 'batch' | 'ranks' | 'groupCounts'> & { readonly gradientGroups: number },
): Dataset {
  const { gradientGroups } = parts;
  return {
    ...data,
    numMicroSteps: numMicroSteps({ ...parts, gradAccum: 1 }),
    microBatch: (step, rank, microStep) => {
      const group = groupOf({ ...parts, strategy: 'ddp', rank, microStep });
      return data.microBatch(step, group ?? gradientGroups, 0); // beyond the last there are no rows
    },
  };
}
