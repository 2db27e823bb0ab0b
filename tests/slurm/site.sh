# What a site adds: here its partition, and a look at the queue every few seconds instead of after 40.
snakemake --workflow-profile profiles/slurm --default-resources slurm_partition=main \
  --slurm-init-seconds-before-status-checks 5 \
  --config only=q_groundcam models=blip-base splits=test shards=4 parameters='{limit: 160}'
