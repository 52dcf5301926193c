"""What `everstep doctor` looks at: this machine and the settings of a job, before it is started. Changes nothing."""
