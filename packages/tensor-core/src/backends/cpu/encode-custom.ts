// On the CPU device the kernel of a custom op is its `plain` function, which runs on the host's
// thread when the queue has come to it. Addresses are taken when it is queued, because a buffer may
// be freed before its last use has run.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { custom as runPlain } from '../reference/custom.js';
import { openElements } from '../reference/elements.js';
import type { CommandWriter } from './command-writer.js';

export function custom(call: KernelCalls['custom'], writer: CommandWriter): void {
  const addresses = new Map(
    [...Object.values(call.inputs), call.out].map((view) => [view, writer.addressOf(view.buffer)]),
  );
  writer.host({
    name: `custom ${call.kernel.name}`,
    run: (memory) =>
      runPlain(call, (view) =>
        openElements(memory, { ...view, byteOffset: addresses.get(view)! + view.byteOffset }),
      ),
  });
}
