// The command `dashboard`: shows all runs under a folder on a page of this machine.

import { once } from 'node:events';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../errors.js';
import { flag, needed } from '../flags/flag.js';
import { file, port } from '../flags/flag-kinds.js';
import { DASHBOARD_PORT } from '../flags/train-flags.js';
import { defineCommand } from './define-command.js';

/** The command `dashboard`. */
export const dashboard = defineCommand({
  name: 'dashboard',
  description:
    'Shows all runs under a folder on a page of this machine: a table of what differs, and those that are chosen over each other. Live runs go on as one looks. Ctrl-C ends it, and no run.',
  flags: {
    folder: needed(file, ['<DIR>', 'such as runs, where --out of train was runs/first']),
    port: flag(port, undefined, [
      '--port <N>',
      `(default: ${DASHBOARD_PORT}, or one that is free)`,
    ]),
  },
  examples: [{ line: 'dashboard runs', says: 'the page of all runs under runs/' }],
  run: async ({ folder, port: asked }, { out, env, listen }) => {
    if (statSync(folder, { throwIfNoEntry: false })?.isDirectory() !== true) {
      throw new UsageError(`${folder} is no directory. Give one in which train has left runs.`);
    }
    using interrupt = listen();
    const { RunsDashboard } = await import('../dashboard/runs-dashboard.js');
    const shown = await RunsDashboard.open(folder, {
      port: typeof asked === 'number' ? asked : 'default',
      env,
    });
    try {
      const { numRuns } = shown;
      out.write(`${numRuns} ${numRuns === 1 ? 'run' : 'runs'} in ${folder}: ${shown.url}\n`);
      if (numRuns === 0) {
        out.write(`It shows runs as they begin there: train --out ${join(folder, 'first')}\n`);
      }
      const { signal } = interrupt;
      if (!signal.aborted) {
        await once(signal, 'abort');
      }
      throw signal.reason;
    } finally {
      await shown.close();
    }
  },
});
