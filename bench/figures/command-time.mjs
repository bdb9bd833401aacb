// The processor time of a whole process, which it writes at its end where whoever started it looks.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const MAIN = join(import.meta.dirname, '../../apps/trainer/dist/main.js');
/** What has a process write its processor time where the bench finds it. */
const TELL = `data:text/javascript,${encodeURIComponent(
  'import{writeFileSync}from"node:fs";process.on("exit",()=>writeFileSync(process.env.CPU_FILE,JSON.stringify(process.cpuUsage())))',
)}`;

/**
 * The seconds of processor time that the trainer's command takes, all threads in it.
 * @param folder where the process may leave a file
 */
export async function secondsOf(args, folder) {
  const file = join(folder, 'cpu.json');
  const child = spawn(process.execPath, ['--import', TELL, MAIN, ...args, '--quiet'], {
    env: { ...process.env, CPU_FILE: file },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const [code] = await once(child, 'exit');
  if (code !== 0) {
    throw new Error(`${args[0]} ended with ${code}`);
  }
  const { user, system } = JSON.parse(readFileSync(file, 'utf8'));
  return (user + system) / 1e6;
}
