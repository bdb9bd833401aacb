// Tells in words why a process can't listen, and what to do. Node only.

/**
 * For example `can't listen on 127.0.0.1:29500: somebody listens there already (EADDRINUSE). ...`.
 */
export class ListenError extends Error {
  constructor(host: string, port: number, cause: NodeJS.ErrnoException) {
    const where = `${host.includes(':') ? `[${host}]` : host}:${port}`;
    super(`can't listen on ${where}: ${explain(cause)}`, { cause });
    this.name = 'ListenError';
  }
}

function explain({ code = '', message }: NodeJS.ErrnoException): string {
  switch (code) {
    case 'EADDRINUSE':
      return `another process listens there already (${code}). Take another port, or 0 for a free one.`;
    case 'EADDRNOTAVAIL':
      return `no interface of this machine has that address (${code}). Take one that it has, such as 127.0.0.1, or 0.0.0.0 for all.`;
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return `nobody knows a host of that name (${code}). Take a name or an address of this machine.`;
    case 'EACCES':
      return `this user may not listen on that port (${code}). Take one from 1024 on, or 0 for a free one.`;
    default:
      return `${message}.`;
  }
}
