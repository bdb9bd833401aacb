// The command `leave`: lets ranks of this machine leave the jobs that they have joined.

import { flag } from '../flags/flag.js';
import { filledText } from '../flags/flag-kinds.js';
import { defineCommand } from './define-command.js';
import { askToLeave } from './joined.js';

/** The command `leave`. */
export const leave = defineCommand({
  name: 'leave',
  description:
    'Lets ranks that join has added from this machine leave their jobs, which go on: each ends its step first.',
  flags: {
    address: flag(filledText, undefined, [
      '--address <HOST:PORT>',
      'the job (default: all of them)',
    ]),
  },
  examples: [
    { line: 'leave', says: 'before this machine is needed for something else' },
    { line: 'leave --address 192.168.1.5:29500', says: 'one job alone' },
  ],
  run: async ({ address }, { env, out }) => {
    const asked = await askToLeave(address, env);
    const text =
      asked.length === 0
        ? 'No rank of this machine has joined a job.'
        : `Asked ${asked.length} of this machine to leave: ${[...new Set(asked)].join(', ')}.`;
    out.write(`${text}\n`);
    return 0;
  },
});
