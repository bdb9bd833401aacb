// The processor time of a command with all processes that it starts, each of which writes its own
// at its end where whoever started it looks.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';

/** The trainer's command, built. */
export const COMMAND = join(import.meta.dirname, '../../apps/trainer/dist/main.js');
/** What has a process write its processor time where the bench finds it. */
const TELL = `data:text/javascript,${encodeURIComponent(
  'import{writeFileSync}from"node:fs";process.on("exit",()=>writeFileSync(process.env.CPU_FILE+process.pid,JSON.stringify(process.cpuUsage())))',
)}`;

/**
 * The seconds of processor time that the trainer's command takes, all threads and processes in it.
 * @param folder where the processes may leave files
 */
export async function secondsOf(args, folder) {
  const name = 'cpu-time-';
  const child = spawn(process.execPath, ['--import', TELL, COMMAND, ...args, '--quiet'], {
    env: { ...process.env, CPU_FILE: join(folder, name) },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const [code] = await once(child, 'exit');
  if (code !== 0) {
    throw new Error(`${args[0]} ended with ${code}`);
  }
  let sum = 0;
  for (const file of readdirSync(folder).filter((own) => own.startsWith(name))) {
    const { user, system } = JSON.parse(readFileSync(join(folder, file), 'utf8'));
    sum += (user + system) / 1e6;
    rmSync(join(folder, file));
  }
  return sum;
}
