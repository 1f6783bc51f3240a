// A person at the keyboard, and what a browser complained about meanwhile.

import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
} from 'playwright-core';

export async function openBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}

export class Reader {
  /** Faults of the pages: what they threw, wrote as an error, or were kept from by their policy. */
  readonly faults: string[] = [];

  private constructor(
    readonly context: BrowserContext,
    readonly page: Page,
  ) {}

  static async sitDown(browser: Browser, options: BrowserContextOptions = {}): Promise<Reader> {
    const context = await browser.newContext({
      locale: 'en-GB',
      timezoneId: 'UTC',
      viewport: { width: 1280, height: 800 },
      ...options,
    });
    const page = await context.newPage();
    page.setDefaultTimeout(5_000);
    const reader = new Reader(context, page);
    await page.exposeFunction('tellFault', (fault: string) => reader.faults.push(fault));
    await page.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (event) => {
        const tell = (window as unknown as { tellFault(fault: string): void }).tellFault;
        tell(`policy: ${event.violatedDirective} ${event.blockedURI}`);
      });
    });
    page.on('pageerror', (error) => reader.faults.push(`thrown: ${error.message}`));
    page.on('console', (message) => {
      const refusal =
        message.text().startsWith('Failed to load resource') && message.location().url.includes('/cb/api/');
      // an answer of the API that refuses is an error to the browser, and ordinary here
      if (!refusal && ['error', 'warning'].includes(message.type()))
        reader.faults.push(`console: ${message.text()}`);
    });
    return reader;
  }

  /** What the keyboard stands on, by its name. */
  focused(): Promise<string> {
    return this.page.evaluate(() => {
      const element = document.activeElement;
      if (element === null || element === document.body) return '';
      const labels = (element as HTMLInputElement).labels;
      const name =
        element.getAttribute('aria-label') ?? (labels?.length ? labels[0]?.textContent : element.textContent);
      return (name ?? '').trim();
    });
  }

  /** Goes with the Tab key to what has this name. */
  async tabTo(name: string | RegExp): Promise<void> {
    const passed: string[] = [];
    for (let count = 0; count < 60; count += 1) {
      await this.page.keyboard.press('Tab');
      const here = await this.focused();
      if (typeof name === 'string' ? here === name : name.test(here)) return;
      passed.push(here);
    }
    throw new Error(`the Tab key does not reach ${String(name)}; it passes ${passed.join(' | ')}`);
  }

  async press(name: string | RegExp, key = 'Enter'): Promise<void> {
    await this.tabTo(name);
    await this.page.keyboard.press(key);
  }

  async fill(name: string | RegExp, text: string): Promise<void> {
    await this.tabTo(name);
    await this.page.keyboard.press('Control+A');
    await this.page.keyboard.press('Delete');
    await this.page.keyboard.type(text);
  }

  /** Waits until the page shows this text. */
  async sees(text: string | RegExp): Promise<void> {
    await this.page.getByText(text).first().waitFor();
  }

  async title(): Promise<string> {
    return (await this.page.locator('h1').innerText()).trim();
  }

  async waitForTitle(title: string): Promise<void> {
    await this.page.locator('h1', { hasText: title }).waitFor();
  }

  leave(): Promise<void> {
    return this.context.close();
  }
}
